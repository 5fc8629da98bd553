#!/usr/bin/env python3
"""Readahead: one program that opens text after text keeps the engine full, and
one that only lists starts nothing. Bounds are generous: machines are busy."""
import os
import sys
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from harness import *

PAGE = 0.2
SLOW = "null:200ms"


def fill(m, count, each=0):
    """Images in one folder, or `each` to a folder; their names in order."""
    names = []
    for i in range(count):
        folder = "d%04d/" % (i // each) if each else ""
        os.makedirs(m.source + "/" + folder, exist_ok=True)
        names.append(folder + "%05d.png" % i)
        m.add(names[-1], seed=i)
    return names


def ahead(m):
    return m.status()["readahead"]


def in_shell(m, command):
    begin = time.monotonic()
    run("sh", "-c", command, cwd=m.path, limit=120, status=None)
    return time.monotonic() - begin


@tests([
    ("grep -r, one folder", 0, "grep -rq nothing ."),
    ("grep -r, three images a folder", 3, "grep -rq nothing ."),
    ("names in order", 0, 'for f in *.md; do cat "$f"; done'),
    ("names from the last to the first", 0, "ls -r *.md | while read f; do cat $f; done"),
    ("find and four at once", 1, "find . -name '*.md' -print0 | xargs -0 -n1 -P4 cat"),
    ("ripgrep", 1, "rg -q nothing -g '*.md'"),
], limit=120)
def is_read_ahead(each, command):
    count = 240
    need("rg" if command.startswith("rg") else "sh")
    with Mount(engine=SLOW) as m:
        fill(m, count, each)
        seconds = in_shell(m, command)
        note("%d pages in %.2f s: %.0f %% of 64 at once; %s" % (
            count, seconds, 100 * count * PAGE / 64 / seconds, ahead(m)))
        equal(m.status()["pages"]["done"], count, "pages")
        check(seconds < count * PAGE / 6, "as good as one by one: %.1f s" % seconds)
        # What is opened just before it is guessed is no guess.
        check(ahead(m)["used"] > count / 2, "used: %s" % ahead(m))


@test
def listings_start_nothing():
    with Mount(engine=SLOW) as m:
        fill(m, 60, 3)
        in_shell(m, "ls -lR . > /dev/null; find . -size +1k > /dev/null; du -a . > /dev/null")
        time.sleep(1)
        equal(m.status()["pages"]["done"], 0, "pages")
        equal(ahead(m)["started"], 0, "started")


@test
def texts_here_and_there_start_nothing():
    with Mount(engine="null:10ms") as m:
        names = fill(m, 200)
        for i in (100, 20, 150, 60, 180, 5):
            read_file(m.text(names[i]))
        time.sleep(1)
        equal(m.status()["pages"]["done"], 6, "pages")


def pages_of(m):
    pages = m.status()["pages"]
    return pages["done"], pages["failed"]


@test
def known_and_failed_texts_start_nothing():
    with Mount(engine="null:10ms:fail=160x96", allow=["told to fail"]) as m:
        names = fill(m, 8)
        m.add(names[5], data=picture(1, 160, 96))
        for name in names:
            try:
                read_file(m.text(name))
            except OSError:
                pass
        equal(pages_of(m), (7, 1), "pages")
        for name in names[:5]:
            read_file(m.text(name))
        time.sleep(0.5)
        equal(pages_of(m), (7, 1), "pages, second time")


@tests([("off", "off", 0), ("5", "5", 5)])
def prefetch(value, most):
    with Mount("prefetch=" + value, engine="null:20ms") as m:
        names = fill(m, 60)
        for name in names[:20]:
            read_file(m.text(name))
        time.sleep(1)
        extra = m.status()["pages"]["done"] - 20
        check(extra <= most, "%d pages ahead" % extra)
        equal(ahead(m)["started"] > 0, most > 0, "something was started")


@test
def goes_on_into_the_next_folders_only_once_readers_did():
    with Mount(engine="null:10ms") as m:
        names = fill(m, 120, 30)
        for name in names[:30]:
            read_file(m.text(name))
        time.sleep(1)
        done = m.status()["pages"]["done"]
        check(done < 60, "%d pages of the next folder, which nobody has opened" % (done - 30))


@test(limit=120)
def others_do_not_wait_for_it():
    with Mount(engine=SLOW) as m:
        fill(m, 400)
        os.makedirs(m.source + "/other")
        for i in range(5):
            m.add("other/%d.png" % i, seed="other %d" % i)
        reader = start("sh", "-c", "cat *.md > /dev/null", cwd=m.path)
        wait_for(lambda: m.status()["queue"]["running"] > 60, "a full engine")
        waits = []
        for i in (3, 0, 4):
            begin = time.monotonic()
            read_file(m.text("other/%d.png" % i))
            waits.append(time.monotonic() - begin)
        note("waits: " + ", ".join("%.2f s" % w for w in waits))
        check(min(waits) < 2 * PAGE, "waited %s s" % waits)
        reader.kill()
        reader.communicate()


main(alone=True)
