#!/usr/bin/env python3
"""A cache that is damaged, or has no room: never a wrong text, and it is said,
once."""
import glob
import os
import sys
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from harness import *
from scans import *


def cache_files(m):
    return [p for p in glob.glob(m.cache + "/*") if os.path.isfile(p)]


def database(m):
    for path in cache_files(m):
        if read_file(path)[:15] == b"SQLite format 3":
            return path
    raise Failed("no database in %s: %s" % (m.cache, cache_files(m)))


def all_right(m, names):
    for name in names:
        equal(read_file(m.text(name)), right_text(m, name), "text of " + name)


def filled(count=20):
    """A mount that has read so many pictures and was unmounted; their names."""
    with Mount() as m:
        names = add_pictures(m, count)
        all_right(m, names)
    return m, names


def again(m, **kwargs):
    return Mount(source=m.source, cache=m.cache, runtime=m.runtime, **kwargs)


@test(limit=60)
def damaged_rows_are_read_again():
    m, names = filled()
    path = database(m)
    data = read_file(path)
    changed = 0
    for name in names[:10]:
        text = right_text(m, name)
        # As a disk would: one bit of the text's own bytes, wherever they are.
        wrong = text[:-2] + bytes([text[-2] ^ 1]) + text[-1:]
        changed += data.count(text)
        data = data.replace(text, wrong)
    check(changed >= 10, "only %d texts were found in %s" % (changed, path))
    write_file(path, data)
    with again(m, allow=["damaged", "cache"]) as second:
        all_right(second, names)
        equal(pages_read(second), 10, "pages read again")
        all_right(second, names)
    with again(m) as third:
        all_right(third, names)
        equal(pages_read(third), 0, "pages read after that")


def damage(path, how):
    data = read_file(path)
    if how == "noise":
        data = data[:100] + os.urandom(len(data) - 100)
    elif how == "header":
        data = os.urandom(100) + data[100:]
    elif how == "truncated":
        data = data[:len(data) // 2 + 13]
    elif how == "empty":
        data = b""
    elif how == "no database":
        data = b"<html>Not found</html>\n" * 1000
    with open(path, "r+b") as f:  # the same file, as damage does
        f.write(data)
        f.truncate()


def a_damaged_database(how):
    m, names = filled()
    damage(database(m), how)
    with again(m, allow=["damage", "cache", "database"]) as second:
        all_right(second, names)
        all_right(second, names)
        said = lines_with(second, "damage", "moved aside", "not a database", "malformed")
        check(len(said) <= 2, "said %d times: %s" % (len(said), said))
        if how != "empty":
            check(said, "not said: " + second.log())
    with again(m) as third:
        all_right(third, names)
        equal(pages_read(third), 0, "pages read after that")


tests([(how, how) for how in ("noise", "header", "truncated", "empty", "no database")],
      limit=60)(a_damaged_database)


def damage_under_running_mounts(how):
    first = Mount(allow=["."])
    with first:
        names = add_pictures(first, 20)
        all_right(first, names)
        second = Mount(source=first.source, cache=first.cache, allow=["."])
        with second:
            all_right(second, names)
            equal(pages_read(second), 0, "pages read by the second mount")
            for path in cache_files(first):
                if os.path.getsize(path) > 0 and not path.endswith("-shm"):
                    damage(path, how)
            more = add_pictures(first, 20, first=100)
            for _ in range(2):
                all_right(first, names + more)
                all_right(second, names + more)
            for m in (first, second):
                said = lines_with(m, "damage", "moved aside", "not a database", "malformed",
                                  "not kept", "without")
                check(len(said) <= 3, "said %d times: %s" % (len(said), said))
    with Mount(source=first.source, cache=first.cache, allow=["."]) as third:
        all_right(third, names + more)


tests([(how, how) for how in ("noise", "truncated")], limit=90)(damage_under_running_mounts)


@test(limit=60)
def the_cache_folder_is_removed():
    with Mount(allow=["cache", "texts are not kept"]) as m:
        names = add_pictures(m, 10)
        all_right(m, names[:5])
        run("rm", "-rf", m.cache)
        all_right(m, names)
        all_right(m, names)


@contextlib.contextmanager
def small_disk(size):
    """A disk of this size with a folder for a cache."""
    if os.geteuid() != 0:
        skip("only root may mount a small disk")
    disk = os.path.join(os.environ["OCRFS_TEST_DIR"], "disk")
    os.mkdir(disk)
    if run("mount", "-t", "tmpfs", "-o", "size=" + size, "none", disk, status=None,
           stderr=True)[0] != 0:
        skip("no tmpfs can be mounted here")
    os.mkdir(disk + "/cache", 0o700)
    try:
        yield disk
    finally:
        run("umount", "-l", disk)


def fill_up(disk):
    """Until not one byte more goes onto it."""
    with open(disk + "/filler", "ab", buffering=0) as f:
        with contextlib.suppress(OSError):
            while True:
                f.write(bytes(4096))


FULL = ["not kept", "full", "space"]


@test(limit=90)
def a_full_disk_under_the_cache():
    with small_disk("2m") as disk:
        with Mount("cache_size=100M", cache=disk + "/cache", allow=FULL) as m:
            names = add_pictures(m, 600)
            all_right(m, names[:20])
            fill_up(disk)
            all_right(m, names[20:])
            all_right(m, names)
            said = lines_with(m, *FULL)
            equal(len(said), 1, "lines about it: %s" % said)
            os.unlink(disk + "/filler")
            before = pages_read(m)
            all_right(m, names)
            all_right(m, names)
            check(pages_read(m) - before <= len(names), "texts are not kept again")
        with Mount("cache_size=100M", cache=disk + "/cache", source=m.source) as later:
            all_right(later, names)
            note("%d of %d pages were read again after the remount" % (
                pages_read(later), len(names)))
            equal(pages_read(later), 0, "pages read again")


@test(limit=90)
def a_disk_that_stays_full_costs_no_text_that_is_there():
    with small_disk("4m") as disk:
        with Mount("cache_size=100M", cache=disk + "/cache", allow=FULL) as m:
            names = add_pictures(m, 30)
            all_right(m, names)
            fill_up(disk)
        check(os.path.getsize(disk + "/cache/cache.db-wal") > 0, "no journal was left")
        fill_up(disk)  # what ended with the mount gave some back
        with Mount("cache_size=100M", cache=disk + "/cache", source=m.source,
                   allow=FULL) as later:
            all_right(later, names)
            equal(pages_read(later), 0, "pages read again")
            more = add_pictures(later, 5, first=100)
            all_right(later, more)
            check(lines_with(later, *FULL), "not said: " + later.log())
            os.unlink(disk + "/filler")
            fresh = add_pictures(later, 5, first=200)
            all_right(later, fresh)
            # With room again others get in as well. (The texts that found none
            # before are not to be read ahead.)
            with Mount("cache_size=100M", "prefetch=off", cache=disk + "/cache", source=m.source) as last:
                all_right(last, names + fresh)
                equal(pages_read(last), 0, "pages read again with room")


@test(limit=60)
def a_disk_too_small_for_the_journal():
    with small_disk("1m") as disk:
        with Mount("cache_size=100M", cache=disk + "/cache", allow=FULL) as m:
            names = add_pictures(m, 400)
            all_right(m, names)
        with Mount("cache_size=100M", cache=disk + "/cache", source=m.source,
                   allow=FULL) as later:
            all_right(later, names)
            again = pages_read(later)
            note("%d of %d texts found no room on 1 MiB" % (again, len(names)))
            check(again < 40, "%d pages read again" % again)


@test(limit=60)
def no_room_from_the_beginning():
    with small_disk("8k") as disk:
        with Mount("cache_size=100M", cache=disk + "/cache", allow=["."]) as m:
            names = add_pictures(m, 5)
            all_right(m, names)
            all_right(m, names)
            check(lines_with(m, "cache", "not kept"), "not said: " + m.log())


@test(limit=60)
def a_read_only_cache():
    if os.geteuid() != 0:
        skip("only root may mount a read-only disk")
    m, names = filled(5)
    run("mount", "--bind", m.cache, m.cache)
    run("mount", "-o", "remount,ro,bind", m.cache)
    try:
        with again(m, allow=["."]) as second:
            all_right(second, names)
            check(lines_with(second, "cache", "not kept"), "not said: " + second.log())
    finally:
        run("umount", "-l", m.cache)


main()
