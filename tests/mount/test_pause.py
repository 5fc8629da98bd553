#!/usr/bin/env python3
"""`ocrfs pause` and `ocrfs resume`: nobody waits, and a machine could sleep.
And `ocr_timeout=`: who waited leaves, the job goes on."""
import os
import sys
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from harness import *
from scans import *


def pause(m, command="pause"):
    run(OCRFS, command, m.path, stderr=True)


def resume(m):
    pause(m, "resume")


def interrupted(path):
    """Not by open(): Python opens again after EINTR."""
    status, _, said = run("cat", path, status=None, stderr=True)
    check(status == 1 and b"Interrupted system call" in said, "cat: %d %r" % (status, said))


def waiting_cat(m, name):
    cat = start("cat", m.text(name))
    wait_for(lambda: m.status()["parked"] >= 1 and parked(cat.pid), "parked cat")
    return cat


@test
def a_parked_reader_leaves_and_comes_back_after():
    with Mount("prefetch=off", engine="null:20s") as m:
        names = add_pictures(m, 3)
        cat = waiting_cat(m, names[0])
        pause(m)
        _, said = cat.communicate(timeout=10)
        equal(cat.returncode, 1, "exit of cat")
        check(b"Interrupted system call" in said, said)
        equal((m.status()["parked"], m.status()["paused"]), (0, True), "after pause")
        check("ocrfs resume" in read_file(m.at(".ocrfs/status")).decode(), "not in status")
        check(b"ocrfs_paused 1\n" in read_file(m.at(".ocrfs/metrics")), "not in metrics")
        for _ in range(2):
            interrupted(m.text(names[1]))
        os.stat(m.text(names[1]))
        equal(read_file(m.at(names[1])), read_file(m.source + "/" + names[1]), "original")
        resume(m)
        equal(m.status()["paused"], False, "after resume")
        cat = waiting_cat(m, names[2])
        cat.kill()
        cat.wait()


@test
def known_texts_are_served_and_new_ones_after_resume():
    with Mount("prefetch=off", engine="null:20ms") as m:
        names = add_pictures(m, 8)
        for name in names[:4]:
            read_file(m.text(name))
        pause(m)
        pause(m)
        for name in names[:4]:  # young ones are hashed for that, which is no job
            equal(read_file(m.text(name)), right_text(m, name), name)
        for name in names[4:]:
            interrupted(m.text(name))
        equal(pages_of(m), 4, "pages while paused")
        resume(m)
        for name in names:
            equal(read_file(m.text(name)), right_text(m, name), name)
        equal(pages_of(m), 8, "pages")


def pages_of(m):
    return m.status()["pages"]["done"]


@test
def what_the_engine_has_begun_is_kept_and_the_rest_is_dropped():
    with Mount("prefetch=off", "jobs=1", engine="null:1s") as m:
        names = add_pictures(m, 4)
        cats = [start("cat", m.text(name)) for name in names]
        wait_for(lambda: m.status()["queue"]["running"] == 1 and m.status()["parked"] == 4, "4 wait")
        pause(m)
        for cat in cats:
            cat.communicate(timeout=10)
            equal(cat.returncode, 1, "exit of cat")
        wait_for(lambda: m.status()["queue"]["running"] == 0, "the one in the engine")
        # Which of two: it had begun and is kept, or had not and is dropped.
        done, queue = pages_of(m), m.status()["queue"]
        check(done <= 1, "%d pages read" % done)
        wait_for(lambda: m.status()["queue"]["jobs_cancelled"] == 4 - done, "the others to be dropped")
        equal(sum(queue["waiting"].values()), 0, "waiting")
        resume(m)
        for name in names:
            equal(read_file(m.text(name)), right_text(m, name), name)
        equal(pages_of(m), 4, "pages")


@test
def stat_that_waits_shows_the_bound():
    with Mount("prefetch=off", "size=wait", engine="null:20s") as m:
        name = add_pictures(m, 1)[0]
        stat = start("stat", "-c", "%s", m.text(name))
        wait_for(lambda: m.status()["parked"] == 1, "parked stat")
        pause(m)
        out, said = stat.communicate(timeout=10)
        equal((out, stat.returncode), (b"65536\n", 0), "stat: %r" % said)


@test
def readahead_and_warm_wait_for_the_end_of_the_pause():
    with Mount("jobs=2", engine="null:300ms") as m:
        names = add_pictures(m, 40)
        warm = start(OCRFS, "warm", m.path)
        wait_for(lambda: pages_of(m) >= 2, "warm to begin")
        pause(m)
        wait_for(lambda: m.status()["queue"]["running"] == 0, "the engine to get done")
        done = pages_of(m)
        check(done < 40, "all was read before the pause")
        check(warm.poll() is None, "warm ended")
        interrupted(m.text(names[-1]))
        equal(pages_of(m), done, "pages while paused")
        resume(m)
        _, said = warm.communicate(timeout=30)
        equal(warm.returncode, 0, "exit of warm: %r" % said)
        equal(pages_of(m), 40, "pages")


@test
def without_a_mount_point_all_mounts_are_told():
    with Mount() as a, Mount() as b:
        # Those of other tests are told as well, so not on this machine's own.
        out = run(OCRFS, "pause", a.path, b.path + "/", stderr=True)[2]
        equal(out.count(b"paused"), 2, out)
        check(a.status()["paused"] and b.status()["paused"], "not both")
        equal(run(OCRFS, "resume", os.path.basename(a.path), cwd=os.path.dirname(a.path),
                  stderr=True)[0], 0, "relative")
        equal((a.status()["paused"], b.status()["paused"]), (False, True), "only one")
        status, _, said = run(OCRFS, "pause", a.source, status=None, stderr=True)
        check(status == 1 and b"no mount of ocrfs" in said, said)


class Frozen:
    """A cgroup that can be frozen; skips where none can be made."""

    def __init__(self):
        self.path = None
        for root, freeze, state, frozen in (
                ("/sys/fs/cgroup", "cgroup.freeze", "cgroup.events", "frozen 1"),
                ("/sys/fs/cgroup/unified", "cgroup.freeze", "cgroup.events", "frozen 1"),
                ("/sys/fs/cgroup/freezer", "freezer.state", "freezer.state", "FROZEN")):
            path = "%s/ocrfs-test-%d" % (root, os.getpid())
            if not os.path.exists(root + "/cgroup.procs"):
                continue
            try:
                os.mkdir(path)
            except OSError:
                continue
            try:
                os.stat(path + "/" + freeze)
                os.close(os.open(path + "/cgroup.procs", os.O_WRONLY))
            except OSError:
                os.rmdir(path)
                continue
            self.path, self.freeze, self.state, self.frozen = path, freeze, state, frozen
            return
        skip("no cgroup can be made here")

    def set(self, on):
        word = ("1" if on else "0") if self.freeze == "cgroup.freeze" else (
            "FROZEN" if on else "THAWED")
        write_file(os.path.join(self.path, self.freeze), word.encode())

    def is_frozen(self):
        return self.frozen in read_file(os.path.join(self.path, self.state)).decode().split("\n")

    def remove(self):
        self.set(False)
        wait_for(lambda: not read_file(self.path + "/cgroup.procs"), "end of its programs")
        os.rmdir(self.path)


@test
def with_pause_a_machine_can_be_frozen():
    with Mount("prefetch=off", engine="null:30s") as m:
        names = add_pictures(m, 20)
        # A program that would open the next text at once, as grep -r does.
        group = Frozen()
        reader = start("sh", "-c", 'echo $$ >"$0" || exit; '
                       'while :; do for f in "$@"; do cat "$f"; sleep 0.01; done; done',
                       group.path + "/cgroup.procs", *[m.text(n) for n in names],
                       stderr=subprocess.DEVNULL)
        try:
            wait_for(lambda: m.status()["parked"] == 1, "a parked reader")
            group.set(True)
            time.sleep(0.5)
            check(not group.is_frozen(), "it froze although a reader waited: pause is of no use")
            group.set(False)
            pause(m)
            group.set(True)
            wait_for(group.is_frozen, "frozen after pause")
            equal(m.status()["parked"], 0, "parked")
            group.set(False)
            resume(m)
            wait_for(lambda: m.status()["parked"] == 1, "the reader goes on")
        finally:
            group.set(False)
            reader.kill()
            reader.wait()
            pause(m)
            group.remove()


# --- ocr_timeout ------------------------------------------------------------

@test
def after_ocr_timeout_the_job_goes_on():
    with Mount("prefetch=off", "jobs=1", "ocr_timeout=1", engine="null:3s",
               allow=["within ocr_timeout"]) as m:
        names = add_pictures(m, 2)
        cats = [start("cat", m.text(name)) for name in names]
        for cat in cats:
            _, said = cat.communicate(timeout=20)
            check(b"timed out" in said, said)
        # Also the one that had not begun.
        wait_for(lambda: pages_of(m) == 2, "both pages")
        for name in names:
            equal(read_file(m.text(name)), right_text(m, name), name)
        equal(pages_of(m), 2, "pages")


main()
