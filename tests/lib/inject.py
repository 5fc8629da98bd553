"""Faults put into the running programs, one call at a time: what
tests/preload/faults.c does, said from here."""
import mmap
import os
import struct

from harness import BUILD, need, skip, wait_for

LIBRARY = os.path.join(BUILD, "tests/preload/faults.so")

# As in faults.c.
KINDS = ("alloc", "read", "write", "sync", "start", "socket", "map", "open")
PROGRAMS = ("ocrfs", "engine", "helper")
ACTIONS = ("fail once", "fail from here", "die")
FIELDS = ("armed", "kind", "program", "action", "at", "count", "hits")


class Faults:
    """`environment` makes a program take part. The file lies in `folder`,
    which the engine may read: its runtime folder."""

    def __init__(self, folder):
        if not os.path.exists(LIBRARY):
            skip("faults are not injected into programs with a sanitizer")
        os.makedirs(folder, 0o700, exist_ok=True)
        path = os.path.join(folder, "faults")
        with open(path, "wb") as f:
            f.write(bytes(4 * len(FIELDS)))
        with open(path, "r+b") as f:
            self.map = mmap.mmap(f.fileno(), 4 * len(FIELDS))
        self.environment = {"LD_PRELOAD": LIBRARY, "OCRFS_FAULTS": path}

    def _set(self, name, value):
        struct.pack_into("I", self.map, 4 * FIELDS.index(name), value)

    def _get(self, name):
        return struct.unpack_from("I", self.map, 4 * FIELDS.index(name))[0]

    def arm(self, program, kind, at, action="fail once"):
        self.disarm()
        for name, value in (("kind", KINDS.index(kind)), ("at", at), ("count", 0),
                            ("program", PROGRAMS.index(program)), ("hits", 0),
                            ("action", ACTIONS.index(action)), ("armed", 1)):
            self._set(name, value)

    def disarm(self):
        """True if the fault came."""
        self._set("armed", 0)
        return self._get("hits") > 0
