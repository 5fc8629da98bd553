#!/usr/bin/env python3
"""`ocrfs status DIR`: how much of a folder is known; rates and waits."""
import fcntl
import os
import pty
import struct
import sys
import termios
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from harness import *
from scans import *


def figures(*argv):
    """{first word: [numbers]} of what status prints of a folder."""
    out = run(OCRFS, "status", *argv).decode()
    return {line.split()[0]: [float(x) for x in re.findall(r"(?<![\w.])\d+(?:\.\d+)?", line[12:])]
            for line in out.splitlines()}, out


def tree(m):
    """10 images in SOURCE, 6 in a/b of which one is bad, 1 folder without."""
    names = add_pictures(m, 10)
    os.makedirs(m.source + "/a/b")
    os.mkdir(m.source + "/empty")
    names += add_pictures(m, 5, name="a/b/%d.png")
    m.add("a/b/bad.png", data=b"no image")
    m.add("a/notes.txt", data=b"text")
    return names


@test
def the_share_of_known_texts_below_a_folder():
    with Mount("prefetch=off", engine="null:1ms", allow=["bad.png"]) as m:
        names = tree(m)
        got, out = figures("--texts", m.path)
        equal((got["images"], got["known"], got["failed"], got["not"]),
              ([16, 4], [0, 0], [0], [16]), out)
        for name in names[:3] + names[-2:]:
            read_file(m.text(name))
        fails(errno.EBADMSG, open, m.text("a/b/bad.png"))
        # Images are young: the index is sure of them when they were hashed
        # once more, after two seconds.
        wait_for(lambda: figures("--texts", m.path)[0]["known"][0] == 5, "5 known")
        got, out = figures("--texts", m.path)
        equal((got["images"], got["known"], got["failed"], got["not"]),
              ([16, 4], [5, 31.2], [1], [10]), out)
        got, out = figures(m.at("a"))
        equal((got["images"], got["known"], got["failed"], got["not"]),
              ([6, 2], [2, 33.3], [1], [3]), out)
        got, out = figures(m.at("empty"))
        equal((got["images"], got["known"]), ([0, 1], [0]), out)
        equal(run(OCRFS, "status", "--texts", cwd=m.at("a")),
              run(OCRFS, "status", m.at("a")), "the current folder")
        equal(m.status()["pages"]["done"], 5, "pages read for it")
        check(b"mounted at" in run(OCRFS, "status", m.path), "status of the mount")
        run(OCRFS, "warm", m.path, status=1, stderr=True)
        got, out = figures("--texts", m.path)
        equal((got["known"], got["failed"], got["not"]), ([15, 93.8], [1], [0]), out)


@test
def a_folder_that_is_in_no_mount_is_said():
    with Mount() as m:
        for folder, why in ((m.source, b"in no mount of ocrfs"), ("/nowhere", b"No such file")):
            status, _, said = run(OCRFS, "status", folder, status=None, stderr=True)
            check(status == 1 and why in said, "%d %r" % (status, said))
        status, _, said = run(OCRFS, "status", "--texts", status=None, stderr=True, cwd=m.source)
        check(status == 2 and b"--texts DIR" in said, "%d %r" % (status, said))
        equal(run(OCRFS, "status", m.path, m.path, status=None, stderr=True)[0], 2, "exit")


@test
def rates_and_waits_are_shown():
    with Mount("prefetch=off", engine="null:20ms") as m:
        for name in add_pictures(m, 6):
            read_file(m.text(name))
        per_second = m.status()["pages"]["per_second"]
        check(0 < per_second <= 50, "%s pages a second" % per_second)
        text = read_file(m.at(".ocrfs/status")).decode()
        waits = [l for l in text.splitlines() if l.startswith("waits")]
        check(waits and " up to " in waits[0], text)
        equal(sum(int(n) for n in re.findall(r"(\d+) (?:up to|above)", waits[0])), 6, waits[0])
        check(re.search(r"pages +6 read, 0 failed; [0-9.]+ a second", text), text)


@test
def a_terminal_breaks_lines_between_words():
    with Mount("prefetch=off", engine="null") as m:
        read_file(m.text(add_pictures(m, 1)[0]))
        plain = run(OCRFS, "status", m.path).decode()
        columns = 60
        pid, terminal = pty.fork()
        if pid == 0:
            size = struct.pack("HHHH", 24, columns, 0, 0)
            fcntl.ioctl(1, termios.TIOCSWINSZ, size)
            os.execv(OCRFS, [OCRFS, "status", m.path])
        seen = b""
        with contextlib.suppress(OSError):
            while part := os.read(terminal, 4096):
                seen += part
        equal(os.waitpid(pid, 0)[1], 0, "exit")
        rows = seen.decode().replace("\r", "").splitlines()
        steady = [r for r in rows if r.startswith(("queue", "opens"))]
        check(len(steady) == 2 and all(r.endswith((",", ";")) for r in steady), rows)
        for row in rows:
            check(len(row) <= columns or " " not in row[12:], row)
        # Figures may have changed meanwhile, the words not.
        words = [re.sub(r"[0-9.]+", "", t) for t in (plain, "\n".join(rows))]
        equal(words[1].split(), words[0].split(), "words")


main()
