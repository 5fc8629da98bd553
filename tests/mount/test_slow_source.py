#!/usr/bin/env python3
"""SOURCE on a file system that is slow, or whose server is gone: only those
wait who need it, and everybody can leave."""
import os
import sys
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from harness import *
from scans import *


class SlowSource:
    """A slowfs; its path is the SOURCE of a Mount. `here` are the real files."""

    def __init__(self, seconds):
        self.base = os.path.join(os.environ["OCRFS_TEST_DIR"], "slow")
        self.here = os.path.join(self.base, "here")
        self.path = os.path.join(self.base, "far")
        for folder in (self.here + "/other", self.path):
            os.makedirs(folder)
        old = time.time_ns() - 100 * 10**9
        for i in range(50):
            path = os.path.join(self.here, "%02d.png" % i)
            write_file(path, picture(i))
            os.utime(path, ns=(old, old))
        write_file(os.path.join(self.here, "other", "a.png"), picture(99))
        self.process = start(os.path.join(TOOLS, "slowfs"), self.here, self.path,
                             str(seconds), stdout=None, stderr=None)
        wait_for(lambda: is_mounted(self.path), "slowfs")
        self.names = ["%02d.png" % i for i in range(50)]

    def hang(self):
        self.process.send_signal(signal.SIGUSR1)

    def end(self):
        run("fusermount3", "-uz", self.path, status=None)
        self.process.kill()
        self.process.wait()


@test(limit=120)
def fifty_opens_on_a_source_with_2_s_a_read():
    slow = SlowSource(2)
    with Mount(source=slow.path, engine="null") as m:
        os.listdir(m.path)
        run("ls", "-l", m.at("other"))
        readers = Readers(m, slow.names)
        wait_for(lambda: readers.waiting() == 50, "all to wait")
        begin = time.monotonic()
        run("ls", "-l", m.at("other"))
        took = time.monotonic() - begin
        note("ls -l of another folder: %.3f s" % took)
        check(took < 1, "ls took %.3f s" % took)
        begin = time.monotonic()
        for p in readers.processes[:25]:
            p.kill()
        wait_for(lambda: readers.alive() <= 25, "the killed to be gone")
        took = time.monotonic() - begin
        note("25 killed readers gone after %.3f s" % took)
        check(took < 1.5, "killed readers took %.3f s" % took)
        readers.join(90)
        for name, status, out, err in readers.results()[25:]:
            equal((status, err), (0, b""), "reader of " + name)
            equal(out, null_text(read_file(os.path.join(slow.here, name))), "text of " + name)
    slow.end()


def stops_though_the_source_hangs(number, seconds, hang):
    slow = SlowSource(seconds)
    m = Mount(source=slow.path, engine="null", allow=["."])
    with m:
        os.listdir(m.path)
        readers = Readers(m, slow.names[:8])
        wait_for(lambda: readers.waiting() == 8, "all to wait")
        listings = []
        if hang:
            slow.hang()
            time.sleep(1.2)  # the kernel forgets what it knew of slowfs
            listings = [start("ls", "-l", m.at("other")) for _ in range(3)]
            wait_for(lambda: all(parked(p.pid) for p in listings), "ls to wait")
            time.sleep(0.2)
        begin = time.monotonic()
        os.kill(m.pid, number)
        # Who hangs in SOURCE cannot clean up after itself.
        m.process.wait(10)
        took = time.monotonic() - begin
        note("ocrfs ended after %.2f s with status %s" % (took, m.process.returncode))
        check(not is_mounted(m.path), "still in mountinfo")
        readers.join(2)
        for name, status, out, _ in readers.results():
            equal((status, out), (1, b""), "reader of " + name)
        for p in listings:
            p.communicate(timeout=PATIENCE)
        m.process = None
    slow.end()


tests([
    ("SIGTERM, reads take for ever", signal.SIGTERM, 100000, False),
    ("SIGTERM, nothing answers", signal.SIGTERM, 100000, True),
    ("SIGINT, nothing answers", signal.SIGINT, 100000, True),
], limit=60)(stops_though_the_source_hangs)


@test(limit=60)
def a_reader_of_an_original_on_a_hanging_source_can_be_killed():
    slow = SlowSource(100000)
    with Mount(source=slow.path, engine="null", allow=["."]) as m:
        p = start("cat", m.at("00.png"))
        time.sleep(0.5)  # it waits for a page, in no call of FUSE
        equal(p.poll(), None, "exit status before the kill")
        p.kill()
        p.wait(2)
        os.kill(m.pid, signal.SIGTERM)
        m.process.wait(10)
        check(not is_mounted(m.path), "still in mountinfo")
        m.process = None
    slow.end()


main(alone=True)
