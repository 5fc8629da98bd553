#!/usr/bin/env python3
"""Every file of tests/data/formats gives what its manifest expects, through
`ocrfs read` and through a mount; and one test for each errno of open()."""
import html
import os
import sys
import unicodedata
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from harness import *

FORMATS = os.path.join(DATA, "formats")
ERRNO = {
    "empty-file": errno.EBADMSG, "truncated": errno.EBADMSG, "corrupt": errno.EBADMSG,
    "not-an-image": errno.EBADMSG, "unsupported": errno.EOPNOTSUPP,
    "too-large": errno.EFBIG,
}
# Formats of plugins, by the beginning of the name. Where this build lacks one,
# its files have no text in a mount, and `ocrfs read` says that they are not
# supported.
PLUGINS = {"tiff-": "TIFF", "webp-": "WebP", "gif-": "GIF", "bmp-": "BMP",
           "heic-": "HEIC", "avif-": "AVIF", "pdf-": "PDF"}


def known_formats():
    """Format -> its endings."""
    out = run(os.path.join(BUILD, "ocrfs-engine"), "--formats").decode()
    lines = [line.split("\t") for line in out.splitlines()]
    return {name: what.split(":")[0].split() for verdict, name, what in lines
            if verdict == "ok"}


def lacking(name, known):
    wants = next((f for start, f in PLUGINS.items() if name.startswith(start)), None)
    return wants and wants not in known


def manifest():
    with open(os.path.join(FORMATS, "manifest.tsv"), encoding="utf-8") as f:
        next(f)
        for line in f:
            name, _, expected, *_ = line.rstrip("\n").split("\t")
            yield name, expected.split(" || ")


def distance(a, b):
    """Levenshtein over characters."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row[-1]


def letters(text):
    """Without Markdown's marks and white space: what a reader compares."""
    text = re.sub(r"^<!-- page \d+ -->$", "", text, flags=re.M)
    text = unicodedata.normalize("NFC", html.unescape(text))
    return re.sub(r"[\s#*|`_>-]|\\(?=\W)", "", text)


def right(expected, kind, text):
    """Whether (kind of error or None, text) is what one token asks for."""
    what, _, value = expected.partition(":")
    if what == "any":
        return True
    if what == "error":
        return kind == value
    if kind is not None:
        return False
    if what == "empty":
        return not text.strip()
    want = letters(read_file(os.path.join(FORMATS, value)).decode() if what == "file" else value)
    return distance(letters(text), want) <= 0.1 * len(want)


def judge(name, expected, kind, text):
    check(any(right(e, kind, text) for e in expected),
          "%s: got %s, want %s" % (name, "error " + kind if kind else repr(text[:80]),
                                   " || ".join(expected)))


KINDS = re.compile(r"\((empty-file|truncated|corrupt|not-an-image|unsupported|too-large)\)$", re.M)


@test(limit=600, mounts_something=False)
def ocrfs_read_gives_what_the_manifest_expects():
    if not os.path.exists(FORMATS):
        skip("tests/data/formats is missing")
    base = os.environ["OCRFS_TEST_DIR"]
    known = known_formats()
    note("beside PNG and JPEG: " + ", ".join(known))
    bad = []
    for name, expected in manifest():
        status, out, err = run(OCRFS, "read", "--engine", "tesseract", "--cache", "memory",
                               "--runtime", base, os.path.join(FORMATS, name),
                               status=None, stderr=True)
        message = err.decode(errors="replace")
        kind = KINDS.search(message)
        try:
            equal(status, 1 if kind else 0, "%s: exit status (%s)" % (name, message.strip()))
            if lacking(name, known):
                expected = ["error:unsupported"]
            judge(name, expected, kind and kind[1], out.decode())
        except Failed as e:
            bad.append(str(e))
    check(not bad, "\n".join(bad))


@test(limit=600)
def a_mount_gives_what_the_manifest_expects():
    if not os.path.exists(FORMATS):
        skip("tests/data/formats is missing")
    names = {number: name for name, number in ERRNO.items()}
    bad = []
    known = known_formats()
    with Mount(engine="tesseract", allow=["."]) as m:
        for name, expected in manifest():
            if lacking(name, known):
                continue
            m.add(name, data=read_file(os.path.join(FORMATS, name)))
            kind, text, number = None, "", 0
            try:
                text = read_file(m.text(name)).decode()
            except OSError as e:
                number = e.errno
                # Several kinds share an errno: any of those expected will do.
                kinds = [k for k, v in ERRNO.items() if v == number]
                wanted = [e[6:] for e in expected if e.startswith("error:")]
                kind = next((k for k in kinds if k in wanted), names.get(number, str(number)))
            try:
                judge(name, expected, kind, text)
            except Failed as e:
                bad.append(str(e))
        listed = os.listdir(m.path)
        m.status()
    check(listed and not bad, "\n".join(bad))


# --- one test for each errno ------------------------------------------------

def refuses(m, name, number):
    fails(number, open, m.text(name))
    st = os.stat(m.text(name))  # stat never fails for such a reason
    check(st.st_size > 0, "size")
    check(name + ".md" in os.listdir(m.path), "not listed")
    wait_for(lambda: name in m.log(), "the reason in the log")
    line = [l for l in m.log().splitlines() if name in l]
    equal(len(line), 1, "lines about it")
    fails(number, open, m.text(name))
    equal(len([l for l in m.log().splitlines() if name in l]), 1, "said once")
    note(line[0])


def bad_image(data, number):
    with Mount(allow=["bad.png"]) as m:
        m.add("bad.png", data=data)
        m.add("good.png")
        refuses(m, "bad.png", number)
        equal(read_file(m.text("good.png")), m.read_directly("good.png"), "the next image")


def huge():
    """A valid header of a picture with 400 megapixels, and no more."""
    small = picture(1)
    import struct
    import zlib
    header = b"IHDR" + struct.pack(">IIBBBBB", 20000, 20000, 8, 0, 0, 0, 0)
    return (small[:8] + struct.pack(">I", 13) + header +
            struct.pack(">I", zlib.crc32(header)) + small[33:])


tests([
    ("EBADMSG, empty", b"", errno.EBADMSG),
    ("EBADMSG, truncated", picture(1)[:200], errno.EBADMSG),
    ("EBADMSG, corrupt", picture(1)[:60] + b"\0" * 60 + picture(1)[120:], errno.EBADMSG),
    ("EBADMSG, no image", b"#!/bin/sh\necho no image\n", errno.EBADMSG),
    ("EOPNOTSUPP, another format", b"8BPS\0\1", errno.EOPNOTSUPP),
    ("EFBIG, pixels", huge(), errno.EFBIG),
])(bad_image)


@test
def efbig_for_a_file_above_1_GiB():
    with Mount(allow=["big.png"]) as m:
        m.add("big.png", data=picture(1))
        path = os.path.join(m.source, "big.png")
        os.truncate(path, (1 << 30) + 1)
        os.utime(path, (1, 1))
        refuses(m, "big.png", errno.EFBIG)


@test
def eacces_for_an_image_that_may_not_be_read():
    # Root reads everything: a mount without its rights does not.
    with Mount(allow=["a.png"]) as m:
        path = m.add("a.png")
        os.chmod(path, 0)
        if os.access(path, os.R_OK):
            skip("root may read everything; test_users runs this as a user")
        refuses(m, "a.png", errno.EACCES)


@test
def enoent_for_an_image_that_vanished():
    with Mount(allow=["a.png"]) as m:
        path = m.add("a.png")
        os.stat(m.text("a.png"))
        os.unlink(path)
        fails(errno.ENOENT, open, m.text("a.png"))


@test
def estale_for_the_node_of_a_vanished_image():
    with Mount(allow=["a.png"]) as m:
        path = m.add("a.png")
        fd = os.open(m.text("a.png"), os.O_PATH)
        os.unlink(path)
        check(fails_any((errno.ESTALE, errno.ENOENT), open, "/proc/self/fd/%d" % fd),
              "opened")
        os.close(fd)


def fails_any(numbers, function, *args):
    try:
        function(*args)
    except OSError as e:
        return e.errno in numbers
    return False


@test
def ebusy_for_an_image_that_keeps_changing():
    writer = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
i = 0
while True:
    os.pwrite(fd, b'%08d' % i, 60)
    i += 1
"""
    with Mount(allow=["a.png"]) as m:
        # Large enough that reading it takes longer than two changes.
        path = m.add("a.png", data=picture(1) + bytes(48 << 20))
        p = start(sys.executable, "-c", writer, path)
        time.sleep(0.2)
        fails(errno.EBUSY, open, m.text("a.png"))
        p.kill()
        p.wait()


@test
def eio_when_the_recogniser_fails_on_this_image():
    with Mount(engine="null:fail=320x96", allow=["a.png"]) as m:
        m.add("a.png")
        refuses(m, "a.png", errno.EIO)


@test
def etimedout_when_it_takes_too_long():
    with Mount("ocr_timeout=1", engine="null:20s", allow=["a.png"]) as m:
        m.add("a.png")
        refuses(m, "a.png", errno.ETIMEDOUT)


@test
def eacces_for_a_program_named_in_noocr():
    with Mount("noocr=tracker:cat", engine="null:50ms") as m:
        m.add("a.png")
        status, out, err = run("cat", m.text("a.png"), status=None, stderr=True)
        equal((status, out), (1, b""), "cat")
        check(b"Permission denied" in err, err.decode())
        text = run("head", "-c", "99999", m.text("a.png"))
        equal(text, m.read_directly("a.png"), "another program")
        equal(run("cat", m.text("a.png")), text, "a text that is known by now")


@test
def enodev_when_the_mount_is_being_stopped():
    m = Mount(engine="null:30s")
    with m:
        m.add("a.png")
        p = start("cat", m.text("a.png"))
        wait_for(lambda: m.status()["parked"] == 1, "a waiting reader")
        m.stop()
        _, err = p.communicate(timeout=PATIENCE)
        check(b"No such device" in err, err.decode())


main()
