#!/usr/bin/env python3
"""`ocrfs read` and `ocrfs status`: order, input from pipes, what goes wrong,
terminals, mounts that do not answer."""
import os
import pty
import select
import sys
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from harness import *


def base():
    return os.environ["OCRFS_TEST_DIR"]


def own(engine="null", cache=True):
    """Options that keep to the test's own folders."""
    os.makedirs(base() + "/run", 0o700, exist_ok=True)
    return ["--engine", engine, "--runtime", base() + "/run",
            "--cache", base() + "/cache" if cache else "memory"]


def images(count):
    paths = [base() + "/%d.png" % i for i in range(count)]
    for i, path in enumerate(paths):
        write_file(path, picture(i))
    return paths


def with_names(*named):
    """What read prints for several files: (path, text)..."""
    return b"\n".join(b"<!-- %s -->\n%s" % (os.fsencode(path), text) for path, text in named)


def on_terminal(*argv, until=None, then=None):
    """Runs a program on a terminal of its own; what it wrote there, and its
    exit status. `then` is called when `until` was seen."""
    pid, fd = pty.fork()
    if pid == 0:
        os.execv(argv[0], argv)
    out = b""
    while True:
        try:
            if not select.select([fd], [], [], 30)[0]:
                raise Failed("nothing on the terminal, so far: %r" % out)
            part = os.read(fd, 65536)
        except OSError:
            break
        if not part:
            break
        out += part
        if until and until in out:
            then(pid, fd)
            until = None
    return out, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def left_on_screen(out):
    """The lines that stay, after what was drawn over and cleared."""
    lines = []
    for line in out.decode().split("\n"):
        shown = ""
        for part in line.rstrip("\r").split("\r"):
            if part.startswith("\x1b[K"):
                shown, part = "", part[3:]
            shown = part + shown[len(part):]
        lines.append(shown)
    return lines


# --- read -------------------------------------------------------------------

@test(mounts_something=False)
def texts_come_in_the_order_given():
    paths = images(20)
    single = [run(OCRFS, "read", *own(cache=False), p) for p in paths]
    equal(len(set(single)), 20, "different texts")
    for options in (own("null:20ms", cache=False), own("null:20ms"), own("null:20ms")):
        order = paths[::-1] + paths[3:5]
        equal(run(OCRFS, "read", *options, *order),
              with_names(*[(p, single[paths.index(p)]) for p in order]), "output")


@test(mounts_something=False)
def known_texts_need_no_engine():
    paths = images(3)
    first = run(OCRFS, "read", *own(), *paths)
    alone = base() + "/bin"
    os.mkdir(alone)
    run("cp", OCRFS, alone)
    os.rename(base() + "/run", base() + "/other")
    equal(run(alone + "/ocrfs", "read", *own(), *paths), first, "from the cache")
    # Also under another name and without the index, by content.
    run("cp", paths[1], base() + "/copy.png")
    equal(run(alone + "/ocrfs", "read", *own(), "--verify", base() + "/copy.png"),
          run(OCRFS, "read", *own(), paths[1]), "a copy")
    write_file(base() + "/new.png", picture(99))
    status, out, err = run(alone + "/ocrfs", "read", *own(), base() + "/new.png", paths[0],
                           status=None, stderr=True)
    equal(status, 1, "exit status")
    equal(out, with_names((paths[0], run(OCRFS, "read", *own(), paths[0]))), "the known one")
    check(b"ocrfs-engine" in err and b"(there is no engine)" in err, err)


@test(mounts_something=False)
def standard_input_and_pipes():
    path = images(1)[0]
    want = run(OCRFS, "read", *own(cache=False), path)
    equal(run(OCRFS, "read", *own(cache=False), "-", stdin=read_file(path)), want, "-")
    script = 'cat "$1" | "$0" read "${@:2}" - ; "$0" read "${@:2}" <(cat "$1")'
    equal(run("bash", "-c", script, OCRFS, path, *own()), want * 2, "pipes")
    script = 'cat "$1" | "$0" read "${@:2}" - "$1"'
    equal(run("bash", "-c", script, OCRFS, path, *own()),
          with_names(("-", want), (path, want)), "a pipe and a file")


@test(mounts_something=False)
def names_of_files_end_no_comment():
    names = [b"a--><script>.png", b"--!>.png", b"\n# b.png", b"\xff.png", "\u00e9.png".encode()]
    shown = [b"a--%3E<script%3E.png", b"--!%3E.png", b"\\x0a# b.png", b"\\xff.png",
             "\u00e9.png".encode()]
    texts = []
    for i, name in enumerate(names):
        write_file(os.path.join(os.fsencode(base()), name), picture(i))
        texts.append(run(OCRFS, "read", *own(), "--", name, cwd=base()))
    equal(run(OCRFS, "read", *own(), "--", *names, cwd=base()),
          with_names(*zip(shown, texts)), "output")


@test(mounts_something=False)
def failures_are_told_and_counted():
    good = images(1)[0]
    text = run(OCRFS, "read", *own(cache=False), good)
    write_file(base() + "/empty.png", b"")
    write_file(base() + "/prose.png", b"only words\n" * 50)
    write_file(base() + "/half.png", read_file(good)[:-60])
    bad = ["/empty.png", "/prose.png", "/half.png", "/nowhere.png", ""]
    kinds = ["(empty-file)", "(not-an-image)", "(truncated)", "(no such file)", "folder"]
    for options in (own(), own()):  # the second time from the cache
        status, out, err = run(OCRFS, "read", *options, *[base() + b for b in bad], good,
                               status=None, stderr=True)
        equal((status, out), (1, with_names((good, text))), "exit status and output")
        lines = err.decode().splitlines()
        equal(len(lines), len(bad), "lines of %r" % lines)
        for name, kind, line in zip(bad, kinds, lines):
            check(line.startswith("ocrfs: error: " + base() + name + ": "), line)
            check(kind in line, line)


@test(mounts_something=False)
def wrong_use_is_status_2():
    for argv in ([], ["--colour", "x.png"], ["--lang"], ["--suffix", ".x", "x.png"]):
        status, out, err = run(OCRFS, "read", *argv, status=None, stderr=True)
        equal((status, out), (2, b""), "ocrfs read %s" % argv)
        check(err.startswith(b"ocrfs: "), err)


def read_pgm(path):
    """(width, height, dpi, pixels)"""
    head = re.match(rb"P5\n# (\d+) dpi\n(\d+) (\d+)\n255\n", read_file(path))
    check(head, "%s is a PGM" % path)
    dpi, width, height = map(int, head.groups())
    return width, height, dpi, read_file(path)[head.end():]


@test(mounts_something=False)
def pages_can_be_had_as_tesseract_gets_them():
    need("tesseract")
    scan = os.path.join(DATA, "samples", "receipt.jpg")
    folder, white = base() + "/pages", base() + "/white.png"
    write_file(white, blank())
    argv = [OCRFS, "read", "--dump-pages", folder, *own("tesseract"), scan, white]
    _, out, err = run(*argv, stderr=True)
    equal((out, os.listdir(folder)), (b"", ["receipt.jpg.pgm"]), "texts, files")
    check(b"white.png: blank" in err, err)
    width, height, dpi, pixels = read_pgm(folder + "/receipt.jpg.pgm")
    equal(len(pixels), width * height, "pixels")
    check(70 <= dpi <= 2400, "dpi %d" % dpi)
    check(sum(p > 200 for p in pixels) > len(pixels) / 2, "the page is not white")
    text = run("tesseract", folder + "/receipt.jpg.pgm", "-", "--dpi", dpi)
    check(b"PANTRY" in text, text)
    # Texts stay texts: nothing of it is in the cache.
    check(b"PANTRY" in run(OCRFS, "read", *own("tesseract"), scan), "text")
    status, _, err = run(*argv, status=None, stderr=True)
    check(status == 1 and b"receipt.jpg.pgm: File exists" in err, (status, err))


@test(mounts_something=False)
def pages_of_other_recognisers_are_refused_and_a_folder_is_needed():
    for argv, word in (((base() + "/pages", *own()), b"not null"), ((), b"needs a folder"),
                       (("/proc/x", *own("tesseract")), b"/proc/x")):
        tail = ["x.png"] if argv else []
        end = ["--dump-pages", *argv] + tail if argv else ["x.png", "--dump-pages"]
        status, out, err = run(OCRFS, "read", *end, status=None, stderr=True)
        equal((status, out), (2, b""), "ocrfs read %s" % end)
        check(word in err, err)


@test(mounts_something=False)
def hostile_names_never_reach_the_terminal():
    name = os.fsencode(base()) + b"/\x1b]0;owned\x07\xff\n.png"
    write_file(name, b"")
    status, _, err = run(OCRFS, "read", *own(), name, status=None, stderr=True)
    equal(status, 1, "exit status")
    check(err.decode().rstrip("\n").isprintable(), "raw bytes: %r" % err)
    write_file(name, picture(1))
    check(run(OCRFS, "read", *own(), b"--", name), "no text")


@test(mounts_something=False)
def a_time_limit_ends_the_wait_for_one():
    paths = images(2)
    status, out, err = run(OCRFS, "read", *own("null:60s"), "--ocr-timeout", "1", *paths,
                           status=None, stderr=True)
    equal((status, out), (1, b""), "exit status and output")
    equal(err.count(b"(timeout)"), 2, "time-outs in %r" % err)


@test(mounts_something=False)
def a_full_disk_under_the_output_is_an_error():
    path = images(1)[0]
    with open("/dev/full", "wb") as full:
        p = start(OCRFS, "read", *own(), path, stdout=full)
        err = p.communicate(timeout=20)[1]
    check(p.returncode != 0 and b"standard output" in err, "%d %r" % (p.returncode, err))


@test(mounts_something=False)
def progress_on_a_terminal_leaves_no_trash():
    paths = images(6)
    want = run(OCRFS, "read", *own(cache=False), *paths).decode().split("\n")
    out, status = on_terminal(OCRFS, "read", *own("null:300ms", cache=False), "--jobs", "1",
                              *paths)
    equal(status, 0, "exit status")
    check(b"/6" in out, "no progress in %r" % out)
    equal(left_on_screen(out), want, "what is left on the screen")
    out, status = on_terminal(OCRFS, "read", *own("null:300ms", cache=False), paths[0])
    check(b"\x1b" not in out, "progress of one file: %r" % out)


@test(mounts_something=False)
def one_file_that_takes_long_says_so():
    path = images(1)[0]
    want = run(OCRFS, "read", *own(cache=False), path).decode().split("\n")
    out, status = on_terminal(OCRFS, "read", *own("null:3s", cache=False), path)
    equal(status, 0, "exit status")
    check(b"reading, 2 s" in out, "no progress in %r" % out)
    equal(left_on_screen(out), want, "what is left on the screen")


@test(mounts_something=False)
def ctrl_c_ends_it_at_once():
    paths = images(3)
    begun = []

    def press(pid, fd):
        begun.append(time.monotonic())
        os.write(fd, b"\x03")

    out, status = on_terminal(OCRFS, "read", *own("null:60s"), *paths, until=b"0/3", then=press)
    check(time.monotonic() - begun[0] < 5, "took its time")
    equal(status, -signal.SIGINT, "exit status")
    equal([x for x in left_on_screen(out) if x not in ("", "^C")], [], "left on the screen")


# --- status -----------------------------------------------------------------

@test
def status_prints_what_the_control_folder_says():
    with Mount() as m:
        m.add("a.png")
        read_file(m.text("a.png"))
        out = run(OCRFS, "status", m.path).decode()
        check(m.source in out and "null" in out, out)
        # Other mounts of this machine may be in any state.
        check(m.source in run(OCRFS, "status", status=None).decode(), "not among all mounts")
    with Mount("control=.other") as m:
        status, _, err = run(OCRFS, "status", m.path, status=None, stderr=True)
        check(status == 1 and b"--control" in err, "%d %r" % (status, err))
        check(m.source in run(OCRFS, "status", "--control", ".other", m.path).decode(), "other")
    status, _, err = run(OCRFS, "status", base(), status=None, stderr=True)
    check(status == 1 and b"no mount of ocrfs" in err, "%d %r" % (status, err))


@test
def status_of_a_mount_that_hangs_or_died():
    m = Mount()
    m.start()
    os.kill(m.pid, signal.SIGSTOP)
    begun = time.monotonic()
    status, out, err = run(OCRFS, "status", m.path, status=None, stderr=True, limit=20)
    check(time.monotonic() - begun < 10, "it waited for the mount")
    equal((status, out), (1, b""), "exit status and output")
    check(b"does not answer" in err and b"may only be busy" in err and
          b"ends the mount: fusermount3 -uz" in err, err)
    os.kill(m.pid, signal.SIGCONT)
    os.kill(m.pid, signal.SIGKILL)
    m.process.wait()
    status, _, err = run(OCRFS, "status", m.path, status=None, stderr=True)
    check(status == 1 and b"fusermount3 -u" in err, "%d %r" % (status, err))
    run("fusermount3", "-u", m.path)


# --- slips of the pen -------------------------------------------------------

@test(mounts_something=False)
def what_is_no_command_is_said():
    os.makedirs(base() + "/texts")
    for argv, want, why in (
            (["stauts"], 2, b"no command 'stauts' (did you mean 'status'?)"),
            (["wram"], 2, b"did you mean 'warm'?"), (["reed"], 2, b"did you mean 'read'?"),
            (["help", "cach"], 2, b"did you mean 'cache'?"), (["foo"], 2, b"no command 'foo' ("),
            (["texts"], 2, b"no mount point"), (["./nowhere"], 2, b"no mount point"),
            (["texts", "texts", "lang=deu"], 1, b"options go behind -o: -o lang=deu"),
            (["texts", "texts", "more"], 1, b"'more' is one argument too many")):
        status, out, err = run(OCRFS, *argv, status=None, stderr=True, cwd=base())
        check((status, out) == (want, b"") and why in err, "%s: %d %r" % (argv, status, err))


main()
