#!/usr/bin/env python3
"""Other people's files: damaged images by the thousand, names that change under
the reader, and processes that are killed at any moment.

OCRFS_TEST_LONG=1: 100,000 images and 200 kills of each."""
import ctypes
import os
import random
import sys
import threading
import zlib
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from harness import *
from scans import *

LONG = bool(os.environ.get("OCRFS_TEST_LONG"))
IMAGES = 100000 if LONG else 2000
KILLS = 200 if LONG else 12
SWAPS = 60.0 if LONG else 5.0  # seconds

# What the table of README "Errors" has for an image.
VERDICTS = {errno.EBADMSG, errno.EOPNOTSUPP, errno.EFBIG}


# --- damaged images ---------------------------------------------------------

def originals():
    folder = os.path.join(DATA, "formats")
    found = []
    for name in sorted(os.listdir(folder)):
        data = read_file(os.path.join(folder, name))
        # The bombs take seconds each, which is their own test's.
        if name.lower().endswith((".png", ".jpg", ".jpeg")) and 0 < len(data) < 40000 \
                and "bomb" not in name and "scans" not in name:
            found.append((name, data))
    return found


def mutate(r, data, others):
    data = bytearray(data)
    for _ in range(r.choice((1, 1, 2, 4, 16))):
        at = r.randrange(len(data)) if data else 0
        way = r.randrange(7)
        if way == 0 and data:
            data[at] ^= 1 << r.randrange(8)
        elif way == 1 and data:
            data[at] = r.choice((0, 1, 127, 128, 254, 255))
        elif way == 2:
            del data[at:at + r.choice((1, 2, 4, 100))]
        elif way == 3:
            data[at:at] = bytes(r.randrange(256) for _ in range(r.choice((1, 4, 20))))
        elif way == 4:
            data[at:at + 4] = r.choice((b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff"))
        elif way == 5:
            other = r.choice(others)[1]
            data[at:at + 64] = other[at:at + 64]
        else:
            del data[max(at, 8):]
    return mend(data) if r.random() < 0.6 else bytes(data)


def mend(data):
    """Makes the checksums of a PNG right, behind which hardly any change would
    get otherwise."""
    at = 8 if data[:4] == b"\x89PNG" else len(data)
    while at + 12 <= len(data):
        length = int.from_bytes(data[at:at + 4], "big")
        if length > len(data) - at - 12:
            break
        right = zlib.crc32(data[at + 4:at + 8 + length])
        data[at + 8 + length:at + 12 + length] = right.to_bytes(4, "big")
        at += length + 12
    return bytes(data)


class Watch:
    """Lists the mount all the time: the slowest must not wait for images."""

    def __init__(self, path):
        self.path, self.slowest, self.times, self.end = path, 0.0, 0, False
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        while not self.end:
            began = time.monotonic()
            os.stat(os.path.join(self.path, "0"))
            os.listdir(os.path.join(self.path, "0"))
            self.slowest = max(self.slowest, time.monotonic() - began)
            self.times += 1
            time.sleep(0.02)

    def stop(self):
        self.end = True
        self.thread.join()


def outcome(path):
    try:
        return 0, read_file(path)
    except OSError as e:
        return e.errno, b""


@test(limit=3600 if LONG else 300)
def damaged_images_cost_an_error_each_and_nothing_else():
    seed = int(os.environ.get("OCRFS_TEST_SEED") or 20260101)
    note("OCRFS_TEST_SEED=%d" % seed)
    r, all_of_them = random.Random(seed), originals()
    seen = {}
    with Mount("prefetch=off", allow=["."]) as m:
        os.mkdir(m.source + "/0")
        m.add("0/a.png", seed=0)
        read_file(m.text("0/a.png"))
        engine, watch = m.engine_pids()[0], Watch(m.path)
        for number in range(IMAGES):
            name, data = r.choice(all_of_them)
            data = mutate(r, data, all_of_them)
            path = m.add("x" + os.path.splitext(name)[1], data=data)
            code, text = outcome(path.replace(m.source, m.path) + ".md")
            seen[code] = seen.get(code, 0) + 1
            if code == 0:
                check(text == b"" or text.startswith(b"# null "), "text %r" % text[:80])
            elif code not in VERDICTS:
                kept = "/tmp/ocrfs-hostile-%d-%s" % (number, name)
                write_file(kept, data)
                raise Failed("%s: %s (kept as %s)" % (name, os.strerror(code), kept))
            os.unlink(path)
        watch.stop()
        note("%d images: %s" % (IMAGES, ", ".join(
            "%d %s" % (n, errno.errorcode.get(c, "read")) for c, n in sorted(seen.items()))))
        note("%d listings meanwhile, the slowest %.0f ms" % (watch.times, watch.slowest * 1e3))
        check(watch.slowest < 5, "a listing took %.1f s" % watch.slowest)
        check(engine in m.engine_pids(), "the engine is another one")
        check(len(seen) > 1 and seen.get(0, 0) > IMAGES / 50, "outcomes %s" % seen)
        m.add("good.png", seed=7)
        equal(read_file(m.text("good.png")), right_text(m, "good.png"), "a good image")


# --- names that change under the reader -------------------------------------

RENAME_EXCHANGE = 2
libc = ctypes.CDLL(None, use_errno=True)


def exchange(a, b):
    if libc.renameat2(-100, a.encode(), -100, b.encode(), RENAME_EXCHANGE):
        raise OSError(ctypes.get_errno(), "renameat2")


def swaps(m, pairs, readers):
    """Exchanges each pair over and over while the readers run."""
    end = time.monotonic() + SWAPS
    state = {"end": False, "swaps": 0}

    def swap():
        while not state["end"]:
            for a, b in pairs:
                exchange(a, b)
                state["swaps"] += 1

    threads = [threading.Thread(target=swap, daemon=True)]
    failures, counts = [], [0] * len(readers)

    def read(i, reader):
        try:
            while time.monotonic() < end:
                reader()
                counts[i] += 1
        except BaseException as e:  # shown by the test
            failures.append(e)

    threads += [threading.Thread(target=read, args=(i, r), daemon=True)
                for i, r in enumerate(readers)]
    for t in threads:
        t.start()
    for t in threads[1:]:
        t.join(SWAPS + 60)
        check(not t.is_alive(), "a reader hangs")
    state["end"] = True
    threads[0].join(10)
    for f in failures:
        raise f
    note("%d exchanges, %d reads" % (state["swaps"], sum(counts)))
    check(state["swaps"] > 100 and min(counts) > 10, "%s, %s" % (state, counts))


@test(limit=200)
def no_byte_from_outside_while_names_are_exchanged():
    base = os.environ["OCRFS_TEST_DIR"]
    outside = os.path.join(base, "outside")
    os.makedirs(outside + "/folder")
    secret = picture(666, 301, 99)
    for path in ("/secret.png", "/folder/in.png"):
        write_file(outside + path, secret)
    forbidden = null_text(secret)
    with Mount("prefetch=off", allow=["."]) as m:
        inside = m.add("a.png", seed=1)
        os.mkdir(m.source + "/folder")
        m.add("folder/in.png", seed=2)
        right = [right_text(m, "a.png"), right_text(m, "folder/in.png")]
        originals_of = [read_file(inside), read_file(m.source + "/folder/in.png")]
        link = os.path.join(m.source, "z-link")
        os.symlink(outside + "/secret.png", link)
        folder_link = os.path.join(m.source, "z-folder")
        os.symlink(outside + "/folder", folder_link)
        pipe = os.path.join(m.source, "z-pipe")
        os.mkfifo(pipe)
        m.add("b.png", seed=3)

        # As a program would that opens what it is given; the kernel follows a
        # link that it sees as the caller, so O_NOFOLLOW looks at ocrfs alone.
        def look(name, wanted):
            def once():
                try:
                    fd = os.open(os.path.join(m.path, name), os.O_RDONLY | os.O_NOFOLLOW
                                 | os.O_NONBLOCK)
                except OSError:
                    return
                try:
                    got = os.read(fd, 1 << 20)
                except OSError:
                    return
                finally:
                    os.close(fd)
                check(got != secret and forbidden not in got, "bytes from outside in " + name)
                check(got == b"" or got in wanted, "%s: %r" % (name, got[:60]))
            return once

        texts = right + [right_text(m, "b.png")]
        files = originals_of + [read_file(m.source + "/b.png")]
        swaps(m, [(inside, link), (m.source + "/folder", folder_link),
                  (m.source + "/b.png", pipe)],
              [look("a.png.md", texts), look("a.png", files), look("b.png.md", texts),
               look("b.png", files), look("folder/in.png.md", [right[1]]),
               lambda: os.listdir(m.path)])
        m.add("c.png", seed=9)
        equal(read_file(m.text("c.png")), right_text(m, "c.png"), "a later text")


# --- processes that are killed ----------------------------------------------

def kill_in_turn(victims_of, what):
    """One reader after the other while victims die at any moment."""
    with Mount("prefetch=off", engine="null:5ms", allow=["."]) as m:
        names = add_pictures(m, 400 if LONG else 120)
        r, state = random.Random(7), {"kills": 0, "end": False}

        def killer():
            while state["kills"] < KILLS and not state["end"]:
                time.sleep(r.random() * 0.2)
                for pid in victims_of(m)[:1]:
                    try:
                        os.kill(pid, signal.SIGKILL)
                        state["kills"] += 1
                    except ProcessLookupError:
                        pass

        t = threading.Thread(target=killer, daemon=True)
        t.start()
        rounds = 0
        while t.is_alive() and rounds < 2000:
            name = "%04d-%d.png" % (rounds, 1)
            m.add(name, seed=1000 + rounds)
            code, text = outcome(m.text(name))
            # Killed three times over one image: said, and read a minute later.
            check(code in (0, errno.EIO), "%s: %s" % (name, os.strerror(code)))
            if code == 0:
                equal(text, right_text(m, name), "text of " + name)
            rounds += 1
        state["end"] = True
        t.join()
        for name in names[:40]:
            equal(read_file(m.text(name)), right_text(m, name), "text of " + name)
        note("%d kills of %s in %d reads" % (state["kills"], what, rounds))
        check(state["kills"] >= KILLS, "only %d kills" % state["kills"])
        words = run(OCRFS, "cache", "verify", "--cache", m.cache).decode()
        check(" 0 damaged" in words, words)


@test(limit=600)
def engines_killed_at_any_moment():
    kill_in_turn(lambda m: [p for p in m.engine_pids() if not is_helper(p)], "engines")


@test(limit=600)
def helpers_killed_at_any_moment():
    kill_in_turn(lambda m: [p for p in m.engine_pids() + [
        d for e in m.engine_pids() for d in descendants(e)] if is_helper(p)], "helpers")


def is_helper(pid):
    try:
        return b"--decode-helper" in read_file("/proc/%d/cmdline" % pid)
    except OSError:
        return False


@test(limit=1800)
def ocrfs_killed_at_any_moment():
    """Nothing that a reader got is lost but what was not stored yet; nothing
    wrong is served afterwards."""
    r = random.Random(11)
    first = Mount("prefetch=off", allow=["."])
    finished = number = 0
    for _ in range(KILLS):
        m = Mount("prefetch=off", allow=["."], source=first.source, cache=first.cache,
                  runtime=first.runtime)
        m.start()
        killer = threading.Timer(0.05 + r.random() * 0.3, lambda m=m: [
            os.kill(pid, signal.SIGKILL) for pid in m.pids()])
        killer.start()
        while True:
            name = "%05d.png" % number
            m.add(name, seed=number)
            try:
                equal(read_file(m.text(name)), right_text(m, name), "text of " + name)
            except OSError as e:
                check(e.errno in (errno.ENOTCONN, errno.ECONNABORTED, errno.ENOENT),
                      os.strerror(e.errno))
                break
            number += 1
        killer.join()
        finished = number
        m.kill()
    with Mount("prefetch=off", source=first.source, cache=first.cache,
               runtime=first.runtime) as last:
        for i in range(finished):
            name = "%05d.png" % i
            equal(read_file(last.text(name)), right_text(last, name), "text of " + name)
        again = pages_read(last)
        note("%d kills, %d texts, %d of them made again" % (KILLS, finished, again))
        check(again <= 2 * KILLS, "%d of %d texts were lost" % (again, finished))
        words = run(OCRFS, "cache", "verify", "--cache", last.cache).decode()
        check(" 0 damaged" in words, words)


main()
