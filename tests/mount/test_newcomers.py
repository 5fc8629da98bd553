#!/usr/bin/env python3
"""index=new: images are read as they come, and only these. OCRFS_LONG=1 also
waits for the look through folders that cannot be watched."""
import os
import sys
import threading
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from harness import *
from scans import *


def ready(m, folders, limit=20):
    wait_for(lambda: m.status()["newcomers"]["folders"] == folders,
             "%d folders" % folders, limit)


def read_by_itself(m, pages, what):
    wait_for(lambda: pages_read(m) >= pages, "%s to be read" % what)
    equal(pages_read(m), pages, "pages read with " + what)


def idle(m):
    """Nothing waits and nothing is read."""
    n = m.status()["newcomers"]
    return not n["waiting"] and not n["running"]


@test
def images_that_come_are_read():
    with Mount("index=new") as m:
        os.makedirs(m.source + "/sub/deep")
        os.makedirs(m.base + "/elsewhere/inner")
        old = m.add("sub/deep/old.png", seed=1)
        m.unmount()
        m.start()
        ready(m, 3)
        # Nobody has looked into the folders.
        m.add("sub/deep/a.png", seed=2)
        read_by_itself(m, 1, "a closed one")
        write_file(m.source + "/sub/b.png.part", picture(3))
        os.rename(m.source + "/sub/b.png.part", m.source + "/sub/b.png")
        read_by_itself(m, 2, "one that has its name last")
        write_file(m.base + "/elsewhere/c.png", picture(4))
        os.rename(m.base + "/elsewhere/c.png", m.source + "/c.png")
        read_by_itself(m, 3, "one moved in")
        write_file(m.base + "/elsewhere/d.png", picture(5))
        os.link(m.base + "/elsewhere/d.png", m.source + "/d.png")
        read_by_itself(m, 4, "one linked in")
        os.makedirs(m.source + "/new/newer")
        m.add("new/newer/e.png", seed=6)
        read_by_itself(m, 5, "one in a new folder")
        write_file(m.base + "/elsewhere/f.png", picture(7))
        write_file(m.base + "/elsewhere/inner/g.png", picture(8))
        os.rename(m.base + "/elsewhere", m.source + "/moved")
        read_by_itself(m, 7, "two in a folder moved in")
        m.add("sub/deep/a.png", seed=9)
        read_by_itself(m, 8, "a changed one")
        ready(m, 7)
        # Known to all: texts are there at once, and no other was made.
        for name in ("sub/deep/a.png", "sub/b.png", "c.png", "new/newer/e.png", "moved/f.png"):
            equal(read_file(m.text(name)), right_text(m, name), "text of " + name)
        wait_for(lambda: idle(m), "quiet")
        equal(pages_read(m), 8, "pages read")
        equal(read_file(m.text("sub/deep/old.png")), null_text(read_file(old)), "the old one")
        equal(pages_read(m), 9, "pages read")


@test
def what_only_moves_is_not_read():
    with Mount("index=new") as m:
        os.makedirs(m.source + "/a")
        os.makedirs(m.source + "/b")
        for i in range(3):
            m.add("a/%d.png" % i, seed=i)
        m.unmount()
        # Not new by the time of its last change either: a mount that begins
        # looks a moment back.
        m.start()
        ready(m, 3)
        os.rename(m.source + "/a/0.png", m.source + "/b/0.png")
        os.rename(m.source + "/a", m.source + "/b/a")
        # Behind these in the list:
        m.add("b/a/new.png", seed=9)
        wait_for(lambda: pages_read(m), "the new one")
        wait_for(lambda: idle(m), "quiet")
        equal(pages_read(m), 1, "pages read")
        shutil.rmtree(m.source + "/b")
        ready(m, 1)


@test
def an_image_is_read_when_it_is_whole():
    with Mount("index=new", allow=["truncated"]) as m:
        ready(m, 1)
        data = picture(7, 600, 800)
        begun, other = threading.Event(), threading.Event()

        def write():
            at = 0
            with open(m.source + "/a.png", "wb", buffering=0) as f:
                while not other.is_set() and at < len(data) // 2:
                    at += f.write(data[at:at + 10])
                    begun.set()
                    time.sleep(0.05)
                f.write(data[at:])
        writer = threading.Thread(target=write)
        writer.start()
        begun.wait()
        os.makedirs(m.source + "/sub")
        m.add("sub/b.png", seed=1)
        wait_for(lambda: pages_read(m) == 1, "the other to be read")
        time.sleep(1)
        equal(pages_read(m), 1, "pages read while one is written")
        other.set()
        writer.join()
        read_by_itself(m, 2, "the whole one")
        equal(m.status()["pages"]["failed"], 0, "pages that failed")


@test
def a_file_that_stays_open():
    with Mount("index=new") as m:
        ready(m, 1)
        with open(m.source + "/a.png", "wb", buffering=0) as f:
            f.write(picture(7))
            read_by_itself(m, 1, "an open one, after two quiet seconds")


@test
def many_at_once():
    with Mount("index=new", engine="null:20ms") as m:
        ready(m, 1)
        os.mkdir(m.base + "/many")
        for i in range(300):
            write_file(m.base + "/many/%d.png" % i, picture(i))
        os.rename(m.base + "/many", m.source + "/many")
        # Who waits goes first.
        wait_for(lambda: exists_in(m, "many/299.png"), "the folder")
        equal(read_file(m.text("many/299.png")), right_text(m, "many/299.png"), "a text")
        note("%d pages were read before the one that somebody waited for" % pages_read(m))
        read_by_itself(m, 300, "all")


def exists_in(m, name):
    return os.path.exists(m.at(name))


@test
def events_that_were_lost():
    with open("/proc/sys/fs/inotify/max_queued_events") as f:
        most = int(f.read())
    with Mount("index=new") as m:
        os.mkdir(m.source + "/sub")
        ready(m, 2)
        os.kill(m.pid, signal.SIGSTOP)
        for i in range(most // 2 + 100):
            path = m.source + "/x%d" % i
            os.symlink("x", path)
            os.unlink(path)
        m.add("sub/a.png", seed=1)
        os.mkdir(m.source + "/other")
        m.add("other/b.png", seed=2)
        os.kill(m.pid, signal.SIGCONT)
        read_by_itself(m, 2, "what came meanwhile")
        equal(m.status()["watch"]["lost"], 1, "times events were lost")
        ready(m, 3)
        m.add("other/c.png", seed=3)
        read_by_itself(m, 3, "the next one")


@test(limit=120)
def folders_that_cannot_be_watched():
    if not os.environ.get("OCRFS_LONG"):
        skip("it takes half a minute: OCRFS_LONG=1")
    with Mount("index=new", "watch=off") as m:
        os.mkdir(m.source + "/sub")
        ready(m, 2, 60)
        m.add("sub/a.png", seed=1)
        wait_for(lambda: pages_read(m) == 1, "the new one", 60)
        equal(m.status()["newcomers"]["unwatched"], 2, "folders not watched")


main()
