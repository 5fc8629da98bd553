#!/usr/bin/env python3
"""Each call that can fail, failed in turn while a text is read: the answer is
the right text or a clear error, soon; the mount goes on, nothing leaks, and the
cache is sound.

OCRFS_TEST_LONG=1 takes every call; else each 2nd or so, from another one on each
time."""
import os
import random
import sys
import threading
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from harness import *
from inject import ACTIONS, Faults
from scans import *

LONG = bool(os.environ.get("OCRFS_TEST_LONG"))
SOON = 10.0  # seconds, and what a busy machine takes
LATE = 60.0

# What a reader may be told. Never a verdict on the image, which is sound, and
# which would be kept. A helper cannot know whose fault it is that it has no
# memory.
CLEAR = {errno.EIO, errno.ENOMEM, errno.EBUSY, errno.EAGAIN, errno.EMFILE, errno.ENFILE,
         errno.ESTALE, errno.EACCES, errno.ENOENT, errno.ENOSPC}
OF_HELPERS = CLEAR | {errno.EFBIG}


def attempt(path, clear):
    """The text, or None after a clear error; within LATE seconds."""
    out = []

    def read():
        try:
            out.append(read_file(path))
        except OSError as e:
            out.append(e.errno)

    thread = threading.Thread(target=read, daemon=True)
    began = time.monotonic()
    thread.start()
    thread.join(LATE)
    check(out, "nothing after %d s" % LATE)
    took = time.monotonic() - began
    if took > SOON:
        note("%s took %.1f s" % (path, took))
    if isinstance(out[0], int):
        check(out[0] in clear, "%s: %s" % (path, os.strerror(out[0])))
        return None, took
    return out[0], took


def descriptors(pid):
    return len(os.listdir("/proc/%d/fd" % pid))


class Trial:
    """A mount in which one call after the other fails."""

    def __init__(self, m, faults):
        self.m, self.faults = m, faults
        self.number = self.failed = self.struck = 0
        self.slowest = 0.0

    def one(self, program, kind, at, action):
        """True if the fault came. A new picture for each: failures are kept
        for a while."""
        m = self.m
        self.number += 1
        name = "%05d.png" % self.number
        m.add(name, seed=self.number)
        os.stat(m.text(name))
        self.faults.arm(program, kind, at, action)
        clear = OF_HELPERS if program == "helper" else CLEAR
        text, took = attempt(m.text(name), clear)
        came = self.faults.disarm()
        self.slowest = max(self.slowest, took)
        if text is None:
            self.failed += 1
            check(came, "%s failed without a fault" % name)
        else:
            equal(text, right_text(m, name), "text with %s %d of %s" % (kind, at, program))
        self.struck += came
        return came

    def all_of(self, program, kind, action, step):
        """Until a text was read without so many calls."""
        before, at = self.struck, 1 + random.randrange(step)
        misses = 0
        while misses < 2 and at < 2000:
            misses = 0 if self.one(program, kind, at, action) else misses + 1
            at += step
        return self.struck - before

    def good(self):
        """It answers as if nothing had been."""
        for _ in range(3):
            self.number += 1
            name = "%05d.png" % self.number
            self.m.add(name, seed=self.number)
            equal(read_file(self.m.text(name)), right_text(self.m, name), "a later text")
        os.listdir(self.m.path)
        self.m.status()


def trial(cases, step):
    """cases: (program, kind, action)."""
    base = os.environ["OCRFS_TEST_DIR"]
    faults = Faults(os.path.join(base, "m1", "run"))
    # Whatever is said about the faults is theirs.
    with Mount("prefetch=off", env=faults.environment, allow=["."]) as m:
        t = Trial(m, faults)
        t.good()
        fds = descriptors(m.pid)
        for program, kind, action in cases:
            found = t.all_of(program, kind, action, 1 if LONG else step)
            note("%-7s %-6s %-14s %3d faults" % (program, kind, action, found))
            t.good()
            check(descriptors(m.pid) <= fds + 2, "%d descriptors, there were %d" % (
                descriptors(m.pid), fds))
        check(t.struck >= len(cases), "only %d faults came" % t.struck)
        note("%d faults, %d of them an error for the reader, the slowest %.1f s" % (
            t.struck, t.failed, t.slowest))
        words = run(OCRFS, "cache", "verify", "--cache", m.cache).decode()
        check(" 0 damaged" in words, words)


@test(limit=600)
def calls_of_ocrfs():
    trial([("ocrfs", kind, "fail once") for kind in
           ("alloc", "read", "write", "sync", "socket", "map", "open")], 2)


@test(limit=600)
def a_cache_whose_disk_takes_nothing_more():
    trial([("ocrfs", kind, "fail from here") for kind in ("write", "sync")], 1)


@test(limit=600)
def calls_of_the_engine():
    trial([("engine", kind, "fail once") for kind in
           ("alloc", "read", "write", "start", "socket", "map", "open")], 1)


@test(limit=600)
def an_engine_that_dies_at_each_call():
    trial([("engine", kind, "die") for kind in ("alloc", "socket", "map")], 2)


@test(limit=600)
def calls_of_a_helper_and_its_death_at_each():
    trial([("helper", kind, action) for kind in ("alloc", "map", "socket")
           for action in ("fail once", "die")], 2)


@test(limit=300)
def ocrfs_dies_at_each_write_to_its_cache():
    """kill -9 between any two of them: what was there is there, and right."""
    base = os.environ["OCRFS_TEST_DIR"]
    faults = Faults(os.path.join(base, "m1", "run"))
    number, found, at = 0, 0, 1
    m = Mount("prefetch=off", env=faults.environment, allow=["."])
    kinds = ["write", "sync"]
    while kinds:
        again = Mount("prefetch=off", env=faults.environment, allow=["."],
                      source=m.source, cache=m.cache, runtime=m.runtime)
        again.start()
        first = again.add("%05d.png" % number, seed=number)
        number += 1
        name = os.path.basename(first)
        equal(read_file(again.text(name)), right_text(again, name), "before")
        name = "%05d.png" % number
        again.add(name, seed=number)
        number += 1
        faults.arm("ocrfs", kinds[0], at, "die")
        try:
            equal(read_file(again.text(name)), right_text(again, name), "text")
            # The text is stored behind the answer's back.
            wait_for(lambda: faults.map[24] or pages_read(again) >= 2, "the store")
        except OSError as e:
            check(e.errno in (errno.ENOTCONN, errno.ECONNABORTED), os.strerror(e.errno))
        came = faults.disarm()
        again.kill()
        words = run(OCRFS, "cache", "verify", "--cache", m.cache).decode()
        check(" 0 damaged" in words, words)
        found += came
        at += 1
        if not came or at > (40 if LONG else 8):
            kinds.pop(0)
            at = 1
    check(found > 2, "only %d faults came" % found)
    note("%d deaths" % found)
    with Mount("prefetch=off", source=m.source, cache=m.cache, runtime=m.runtime) as last:
        for i in range(number):
            name = "%05d.png" % i
            equal(read_file(last.text(name)), right_text(last, name), name)
        check(pages_read(last) <= found, "%d pages were lost by %d deaths" % (
            pages_read(last), found))


main()
