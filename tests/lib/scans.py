"""What the recogniser `null` makes of a picture, and many programs at once."""
import collections
import contextlib
import os
import struct
import time
import zlib

from harness import (check, equal, parked, read_file, start, state_of, wait_for)
from documents import gray
from picture import picture, png


def size_of(data):
    """(width, height) of a PNG."""
    return struct.unpack(">II", data[16:24])


def null_text(data):
    """The text of an 8 bit gray PNG without filters, as picture() makes."""
    width, height, pixels = gray(data)
    return b"# null %dx%d\n\nchecksum %08x\n" % (width, height, zlib.crc32(pixels))


def version(i):
    """A picture; all are of one size in bytes: not compressed."""
    width, height = 320, 96
    rows = [bytes([255]) * width for _ in range(height)]
    for y in range(20, 70):
        rows[y] = bytes((0 if (x * 2654435761 >> 7) + i * 40503 * (x // 8) & 16 else 255)
                        for x in range(width))
    rows[80] = (i.to_bytes(4, "big") * (width // 4))
    return png(width, height, rows, level=0)


def add_pictures(m, count, name="%04d.png", first=0):
    """Adds so many pictures to SOURCE; their names."""
    names = [name % i for i in range(first, first + count)]
    for i, one in enumerate(names, first):
        m.add(one, seed=i)
    return names


def right_text(m, name):
    return null_text(read_file(os.path.join(m.source, name)))


def _where(pid):
    with contextlib.suppress(OSError):
        return read_file("/proc/%d/wchan" % pid).decode()
    return ""


class Readers:
    """Programs that read one text each, all at the same time. With gate=True
    they wait until open_gate()."""

    def __init__(self, m, names, program=("cat",), gate=False):
        self.m, self.names = m, names
        self.folder = os.path.join(m.base, "out%d" % time.monotonic_ns())
        os.mkdir(self.folder)
        self.gate = os.path.join(self.folder, "gate")
        if gate:
            os.mkfifo(self.gate)
            program = ("sh", "-c", ': < "$0"; exec cat "$1"', self.gate)
        self.processes = []
        for i, name in enumerate(names):
            with open(self._path(i, "out"), "wb") as out, \
                    open(self._path(i, "err"), "wb") as err:
                self.processes.append(start(*program, m.text(name), stdout=out, stderr=err))

    def _path(self, i, kind):
        return os.path.join(self.folder, "%d.%s" % (i, kind))

    def at_gate(self):
        """How many have come to the gate."""
        return sum(_where(p.pid) in ("wait_for_partner", "fifo_open")
                   for p in self.processes)

    def open_gate(self):
        """Opening a FIFO for writing lets all go on that open it for reading."""
        os.close(os.open(self.gate, os.O_WRONLY))

    def waiting(self):
        """How many wait in the file system."""
        return sum(parked(p.pid) for p in self.processes)

    def alive(self):
        return sum(p.poll() is None for p in self.processes)

    def signal(self, number):
        for p in self.processes:
            p.send_signal(number)

    def join(self, limit):
        wait_for(lambda: not self.alive(), "end of %d readers" % len(self.names), limit)

    def results(self):
        """[(name, exit status, output, errors)] of programs that have ended."""
        return [(name, p.returncode, read_file(self._path(i, "out")),
                 read_file(self._path(i, "err")))
                for i, (name, p) in enumerate(zip(self.names, self.processes))]

    def all_right(self, limit=60):
        """Waits; each must have got the text of its picture."""
        self.join(limit)
        for name, status, out, err in self.results():
            equal((status, err), (0, b""), "reader of " + name)
            equal(out, right_text(self.m, name), "text of " + name)


def pages_read(m):
    """Pages that this mount had read by the recogniser."""
    return m.status()["pages"]["done"]


def threads_of(pid):
    return len(os.listdir("/proc/%d/task" % pid))


def memory_of(pid):
    """Resident bytes."""
    for line in read_file("/proc/%d/status" % pid).splitlines():
        if line.startswith(b"VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def lines_with(m, *words):
    """Lines of the log with one of the words."""
    return [l for l in m.log().splitlines() if any(w in l for w in words)]
