#!/usr/bin/env python3
"""Engines and mounts that die: nobody pays for another's crash, nothing that
was finished is lost, nothing is left running."""
import glob
import os
import sqlite3
import sys
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from harness import *
from scans import *


@test(limit=120)
def a_picture_that_kills_the_engine_among_63_good_ones():
    with Mount(engine="null:20ms:crash=333x97", allow=["deadly.png", "engine"]) as m:
        names = add_pictures(m, 63)
        m.add("deadly.png", data=picture(1, 333, 97))
        names.insert(31, "deadly.png")
        readers = Readers(m, names)
        readers.join(90)
        for name, status, out, err in readers.results():
            if name == "deadly.png":
                equal((status, out), (1, b""), "exit and output for the deadly one")
                check(b"Input/output error" in err, err)
            else:
                equal((status, err), (0, b""), "reader of " + name)
                equal(out, right_text(m, name), "text of " + name)
        equal(len(lines_with(m, "deadly.png")), 1, "lines of the log about it")
        # It is known for a minute; the engine lives.
        fails(errno.EIO, open, m.text("deadly.png"))
        m.add("later.png", seed=99)
        equal(read_file(m.text("later.png")), right_text(m, "later.png"), "a later text")


@test(limit=120)
def kill_9_of_the_engine_five_times_over_64_pages():
    with Mount(engine="null:300ms:workers=4", allow=["engine"]) as m:
        readers = Readers(m, add_pictures(m, 64))
        killed = set()
        for _ in range(5):
            pid = wait_for(lambda: [p for p in m.engine_pids() if p not in killed],
                           "an engine", 20)[0]
            done = pages_read(m)
            wait_for(lambda: pages_read(m) > done, "a page after a restart")
            killed.add(pid)
            os.kill(pid, signal.SIGKILL)
        check(readers.alive() > 0, "all was read before the last kill")
        readers.all_right(60)


@test(limit=60)
def kill_9_of_the_engine_between_pages():
    with Mount(allow=["engine"]) as m:
        for name in add_pictures(m, 3):
            equal(read_file(m.text(name)), right_text(m, name), "text of " + name)
            for pid in m.engine_pids():
                os.kill(pid, signal.SIGKILL)


@test(limit=120)
def kill_9_of_ocrfs_while_8_pages_run():
    # Eight workers that have something to do for ever: if the engine went on
    # with the pages of a dead mount, the next one would get no answer.
    engine = "null:10ms:workers=8:hang=333x97"
    m = Mount(engine=engine)
    m.start()
    finished = add_pictures(m, 20)
    Readers(m, finished).all_right()
    running = ["r%d.png" % i for i in range(8)]
    for i, name in enumerate(running):
        m.add(name, data=picture(i, 333, 97))
    readers = Readers(m, running)
    wait_for(lambda: m.status()["queue"]["running"] == 8, "8 pages in the engine")
    m.kill()
    readers.join(5)
    for name, status, out, err in readers.results():
        equal((status, out), (1, b""), "reader of " + name)

    with Mount(engine=engine, source=m.source, cache=m.cache, runtime=m.runtime) as again:
        for name in finished:
            equal(os.stat(again.text(name)).st_size, len(right_text(again, name)),
                  "size of " + name)
            equal(read_file(again.text(name)), right_text(again, name), "text of " + name)
        equal(pages_read(again), 0, "pages read after the remount")
        Readers(again, add_pictures(again, 16, "new%d.png", first=500)).all_right(20)
        for pid in again.engine_pids():
            check(len(descendants(pid)) <= 16, "helpers are left")
    databases = glob.glob(m.cache + "/*.db") + glob.glob(m.cache + "/*.sqlite")
    check(databases, "no database in " + m.cache)
    for path in databases:
        with contextlib.closing(sqlite3.connect(path)) as db:
            equal(db.execute("PRAGMA integrity_check").fetchall(), [("ok",)], path)


@test(limit=60)
def kill_9_of_ocrfs_leaves_no_busy_process():
    need("tesseract")
    m = Mount(engine="tesseract", allow=["."])
    m.start()
    names = ["%d.png" % i for i in range(8)]
    for i, name in enumerate(names):
        m.add(name, data=picture(i, 1600, 2200))
    readers = Readers(m, names)
    wait_for(lambda: m.status()["queue"]["running"] > 0, "pages in the engine")
    m.kill()
    readers.join(5)
    # Pages that run are cancelled: sooner or later no processor time is used.
    wait_for(lambda: is_quiet(m), "an engine without work")


def is_quiet(m):
    before = processor_ticks(m.engine_pids())
    time.sleep(0.5)
    return processor_ticks(m.engine_pids()) - before <= 5


def processor_ticks(pids):
    """Of these processes and their children."""
    total = 0
    for pid in set(pids) | {p for pid in pids for p in descendants(pid)}:
        with contextlib.suppress(OSError):
            fields = read_file("/proc/%d/stat" % pid).rsplit(b")", 1)[1].split()
            total += int(fields[11]) + int(fields[12])
    return total


main()
