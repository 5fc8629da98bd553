#!/usr/bin/env python3
"""Awkward names and kinds of files: each has a text where it should, and
neither the log nor status.json breaks."""
import os
import sys
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from harness import *


def listing(path):
    return sorted(os.listdir(os.fsencode(path)))


def reads(m, name):
    """The text of `name` is there, listed, and what the recogniser says."""
    name = os.fsencode(name)
    folder = os.path.dirname(m.at(name))
    check(os.path.basename(name) + b".md" in listing(folder), "not listed: %r" % name)
    equal(read_file(m.text(name)), m.read_directly(name), "text of %r" % name)


def one_name(name):
    with Mount() as m:
        m.add(name)
        reads(m, name)
        equal(listing(m.path), [name, name + b".md"], "listing")
        equal(read_file(m.at(name)), read_file(os.path.join(
            os.fsencode(m.source), name)), "the original")
        m.status()


tests([
    ("spaces", b"  two  words .png"),
    ("newline", b"two\nlines.png"),
    ("escape sequence", b"\x1b[2J\x1b]0;title\x07.png"),
    ("bytes that are not UTF-8", b"caf\xe9 \xff\xfe.png"),
    ("UTF-8", "Prüfung 発票.png".encode()),
    ("quotes, backslash, comma", b"a\"b'c\\d,e=f.png"),
    ("leading dash", b"-rf.png"),
    ("leading dot", b".png.png"),
    ("right-to-left override", "a\u202egnp.png".encode()),
    ("252 bytes", b"a" * 248 + b".png"),
])(one_name)


@test
def a_name_of_253_bytes_has_no_text():
    # With .md behind it would not fit in the 255 bytes of a name.
    with Mount() as m:
        name = b"a" * 249 + b".png"
        m.add(name)
        equal(listing(m.path), [name], "listing")
        fails(errno.ENAMETOOLONG, os.stat, m.text(name))
        check(read_file(m.at(name)).startswith(b"\x89PNG"), "the original")


@test
def a_name_of_255_bytes_is_an_ordinary_file():
    with Mount() as m:
        name = b"a" * 251 + b".png"
        m.add(name)
        equal(listing(m.path), [name], "listing")
        check(read_file(m.at(name)).startswith(b"\x89PNG"), "the original")


@test
def extensions_in_any_case_have_texts():
    with Mount() as m:
        names = ["A.PNG", "b.Png", "C.JPG", "d.JpEg", "e.JPE", "f.jfif"]
        for name in names:
            m.add(name)  # the content decides, and it is a PNG in all
        for name in names:
            reads(m, name)
        fails(errno.ENOENT, os.stat, m.at("a.png.md"))
        fails(errno.ENOENT, os.stat, m.at("A.PNG.MD"))


@test
def other_extensions_have_no_text():
    with Mount() as m:
        names = ["a.txt", "b", "png", ".png", "c.png.bak", "d.pngx", "e.md"]
        for name in names:
            m.add(name)
        wanted = sorted(map(os.fsencode, names))
        got = [n for n in listing(m.path) if n != b".png.md"]
        equal(got, wanted, "listing")
        for name in ("a.txt", "b", "png", "c.png.bak", "d.pngx", "e.md"):
            fails(errno.ENOENT, os.stat, m.text(name))


@test
def a_folder_named_like_an_image_stays_a_folder():
    with Mount() as m:
        os.mkdir(os.path.join(m.source, "x.png"))
        m.add("x.png/in.png")
        equal(listing(m.path), [b"x.png"], "listing")
        fails(errno.ENOENT, os.stat, m.text("x.png"))
        reads(m, "x.png/in.png")


@test
def a_real_text_wins():
    with Mount() as m:
        m.add("a.png")
        m.add("a.png.md", data=b"written by hand\n")
        equal(listing(m.path), [b"a.png", b"a.png.md"], "listing")
        equal(os.stat(m.text("a.png")).st_size, 16, "size")
        equal(read_file(m.text("a.png")), b"written by hand\n", "text")


@test
def a_real_text_that_comes_and_goes():
    with Mount() as m:
        m.add("a.png")
        made = read_file(m.text("a.png"))
        path = m.add("a.png.md", data=b"mine\n")
        wait_for(lambda: read_file(m.text("a.png")) == b"mine\n", "the real text")
        os.unlink(path)
        wait_for(lambda: read_file(m.text("a.png")) == made, "the made text")


@test
def a_folder_with_the_name_of_a_text_wins():
    with Mount() as m:
        m.add("a.png")
        os.mkdir(os.path.join(m.source, "a.png.md"))
        equal(listing(m.path), [b"a.png", b"a.png.md"], "listing")
        check(os.path.isdir(m.text("a.png")), "not a folder")


@test
def another_suffix():
    with Mount("suffix=.ocr.txt") as m:
        m.add("a.png")
        equal(listing(m.path), [b"a.png", b"a.png.ocr.txt"], "listing")
        equal(read_file(m.text("a.png", ".ocr.txt")), m.read_directly("a.png"), "text")
        fails(errno.ENOENT, os.stat, m.text("a.png"))


@test
def a_text_is_found_before_any_listing():
    with Mount() as m:
        os.makedirs(os.path.join(m.source, "deep/er"))
        m.add("deep/er/a.png")
        equal(read_file(m.text("deep/er/a.png")), m.read_directly("deep/er/a.png"), "text")


@test
def hard_links_share_one_text():
    with Mount(engine="null:50ms") as m:
        os.mkdir(os.path.join(m.source, "sub"))
        path = m.add("a.png")
        for other in ("b.png", "sub/c.png", "d.jpg"):
            os.link(path, os.path.join(m.source, other))
        for name in ("a.png", "b.png", "sub/c.png", "d.jpg"):
            reads(m, name)
        equal(os.stat(m.at("a.png")).st_nlink, 4, "nlink of the image")
        equal(os.stat(m.text("a.png")).st_nlink, 1, "nlink of the text")
        equal(os.stat(m.at("a.png")).st_ino, os.stat(m.at("sub/c.png")).st_ino, "inode")


@test
def symlinks_have_no_text_and_are_not_followed():
    with Mount() as m:
        outside = os.path.join(m.base, "secret.png")
        write_file(outside, picture("secret"))
        m.add("real.png")
        os.symlink(outside, os.path.join(m.source, "out.png"))
        os.symlink("real.png", os.path.join(m.source, "in.png"))
        os.symlink("nowhere.png", os.path.join(m.source, "dangling.png"))
        os.symlink("loop.png", os.path.join(m.source, "loop.png"))
        os.symlink("/etc", os.path.join(m.source, "folder"))
        equal(listing(m.path), [b"dangling.png", b"folder", b"in.png", b"loop.png",
                                b"out.png", b"real.png", b"real.png.md"], "listing")
        for name in ("out.png", "in.png", "dangling.png", "loop.png"):
            fails(errno.ENOENT, os.stat, m.text(name))
            equal(os.readlink(m.at(name)), os.readlink(os.path.join(m.source, name)),
                  "target of " + name)
        equal(read_file(m.at("in.png")), read_file(m.at("real.png")), "inside")


@test
def follow_gives_texts_to_links_that_stay_inside():
    with Mount("follow") as m:
        outside = os.path.join(m.base, "secret.png")
        write_file(outside, picture("secret"))
        m.add("real.png")
        os.symlink(outside, os.path.join(m.source, "out.png"))
        os.symlink("real.png", os.path.join(m.source, "in.png"))
        equal(read_file(m.text("in.png")), read_file(m.text("real.png")), "text")
        fails(errno.ENOENT, open, m.text("out.png"))


@test
def special_files_are_shown_and_never_opened():
    with Mount() as m:
        os.mkfifo(os.path.join(m.source, "pipe.png"))
        import socket
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(os.path.join(m.source, "s.png"))
        equal(listing(m.path), [b"pipe.png", b"s.png"], "listing")
        check(stat.S_ISFIFO(os.lstat(m.at("pipe.png")).st_mode), "type of the FIFO")
        check(stat.S_ISSOCK(os.lstat(m.at("s.png")).st_mode), "type of the socket")
        for name in ("pipe.png", "s.png"):
            fails(errno.ENOENT, os.stat, m.text(name))


@test
def a_fifo_put_in_the_place_of_an_image_blocks_nobody():
    with Mount(allow=["a.png"]) as m:
        path = m.add("a.png")
        os.stat(m.text("a.png"))
        os.unlink(path)
        os.mkfifo(path)
        try:
            read_file(m.text("a.png"))
            raise Failed("the text of a FIFO")
        except OSError as e:
            check(e.errno in (errno.ENOENT, errno.ESTALE, errno.EACCES), str(e))


@test
def an_unreadable_image():
    if os.geteuid() == 0:
        skip("root may read everything")
    with Mount(allow=["a.png"]) as m:
        os.chmod(m.add("a.png"), 0)
        fails(errno.EACCES, open, m.text("a.png"))
        fails(errno.EACCES, open, m.at("a.png"))
        equal(listing(m.path), [b"a.png", b"a.png.md"], "listing")


@test
def an_unreadable_folder():
    if os.geteuid() == 0:
        skip("root may read everything")
    with Mount() as m:
        os.mkdir(os.path.join(m.source, "closed"), 0)
        fails(errno.EACCES, os.listdir, m.at("closed"))
        equal(listing(m.path), [b"closed"], "listing")


@test
def an_image_that_vanished():
    with Mount(allow=["a.png"]) as m:
        path = m.add("a.png")
        os.stat(m.text("a.png"))
        os.unlink(path)
        try:
            open(m.text("a.png")).close()
            raise Failed("the text of a vanished image opened")
        except OSError as e:
            check(e.errno in (errno.ENOENT, errno.ESTALE), str(e))
        wait_for(lambda: listing(m.path) == [], "empty listing")


@test
def an_image_that_vanishes_during_recognition():
    with Mount(engine="null:700ms") as m:
        path = m.add("a.png")
        want = m.read_directly("a.png")
        reader = start("cat", m.text("a.png"))
        wait_for(lambda: m.status()["parked"] == 1, "a waiting reader")
        wait_for(lambda: m.status()["queue"]["running"] > 0, "the job to run")
        os.unlink(path)
        out, _ = reader.communicate(timeout=10)
        equal(out, want, "the text of the bytes that were read")


@test
def names_that_differ_only_in_case():
    with Mount() as m:
        m.add("a.png", seed=1)
        m.add("A.png", seed=2)
        m.add("a.PNG", seed=3)
        texts = {read_file(m.text(n)) for n in ("a.png", "A.png", "a.PNG")}
        equal(len(texts), 3, "different texts")


@test
def hostile_names_leave_log_and_json_valid():
    # A damaged image is named in the log, in status.json and in the metrics.
    with Mount(allow=["png"]) as m:
        names = [b"a\nocrfs: error: forged.png", b"\x1b[31mred.png", b"\xff\xfe.png",
                 b'quote".png', b"tab\t.png", "a\u2028b.png".encode(), b"\\.png"]
        for name in names:
            m.add(name, data=b"\x89PNG\r\n\x1a\n damaged")
            fails(errno.EBADMSG, open, m.text(name))
        m.status()
        for line in m.log().splitlines():
            check(not line.startswith("ocrfs: error: forged"), "a forged line: " + line)
        for name in ("status", "metrics"):
            text = read_file(os.path.join(m.path, ".ocrfs", name)).decode()
            check(all(l.isprintable() or "\t" in l for l in text.split("\n")),
                  "%s is not printable" % name)


@test
def the_control_folder():
    with Mount() as m:
        os.mkdir(os.path.join(m.source, ".ocrfs"))
        m.add(".ocrfs/hidden.png")
        check(b".ocrfs" not in listing(m.path), "listed")
        equal(listing(m.at(".ocrfs")), [b"metrics", b"status", b"status.json"], "content")
        for name in ("status", "status.json", "metrics"):
            st = os.stat(m.at(".ocrfs/" + name))
            equal(stat.S_IMODE(st.st_mode), 0o400, "mode of " + name)
            equal(st.st_uid, os.getuid(), "owner of " + name)
            with open(m.at(".ocrfs/" + name), "rb") as f:
                data = f.read()
                equal(os.fstat(f.fileno()).st_size, len(data), "size of " + name)
                check(data.endswith(b"\n"), "no newline at the end of " + name)


@test
def the_control_folder_elsewhere_or_nowhere():
    with Mount("control=.state") as m:
        json.loads(read_file(m.at(".state/status.json")))
        fails(errno.ENOENT, os.stat, m.at(".ocrfs"))
    with Mount("control=off") as m:
        fails(errno.ENOENT, os.stat, m.at(".ocrfs"))


main()
