#!/usr/bin/env python3
"""Options that decide what a mount shows: include=, exclude=, min_pixels=,
show=, errors=, size=wait:NAMES, xattr, verify, partial, control."""
import os
import sys
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from harness import *
from scans import *


def listing(m):
    """Everything below the mount, as ls -R has it; each name can be looked up."""
    found = []
    for here, folders, files in os.walk(m.path):
        for name in folders + files:
            os.lstat(os.path.join(here, name))
            found.append(os.path.relpath(os.path.join(here, name), m.path))
    return sorted(found)


def texts(m):
    return [n for n in listing(m) if n.endswith(".md")]


def tree(m, *names):
    for name in names:
        os.makedirs(os.path.dirname(os.path.join(m.source, name)), exist_ok=True)
        m.add(name)


# --- include, exclude, min_pixels -------------------------------------------

def which_images_have_texts(options, want):
    with Mount("prefetch=off", *options) as m:
        tree(m, "a.png", "b.jpg", "2019/c.png", "2019/x/d.png", "private/e.png", "2020/f.PNG")
        equal(texts(m), sorted(n + ".md" for n in want), "texts")
        all_names = ["a.png", "b.jpg", "2019/c.png", "2019/x/d.png", "private/e.png", "2020/f.PNG"]
        for name in all_names:
            equal(read_file(m.at(name)), read_file(os.path.join(m.source, name)), "original")
            if name in want:
                os.stat(m.text(name))
            else:
                fails(errno.ENOENT, os.stat, m.text(name))
        run("grep", "-r", "checksum", m.path, status=0)
        equal(m.status()["pages"]["done"], len(want), "pages read")


tests([
    ("include a type", ["include=*.jpg"], ["b.jpg"]),
    ("include two", ["include=*.jpg:2019"], ["b.jpg", "2019/c.png", "2019/x/d.png"]),
    ("include one folder only", ["include=/2019/*.png"], ["2019/c.png"]),
    ("include at any depth", ["include=2019/**/*.png"], ["2019/c.png", "2019/x/d.png"]),
    ("exclude a folder", ["exclude=private:x"], ["a.png", "b.jpg", "2019/c.png", "2020/f.PNG"]),
    ("exclude wins", ["include=*.png", "exclude=2019"], ["a.png", "private/e.png"]),
], limit=60)(which_images_have_texts)


@test
def icons_have_no_text():
    with Mount("prefetch=off", "min_pixels=10000", "follow") as m:
        for name, width, height in (("icon.png", 64, 64), ("small.png", 99, 101),
                                    ("enough.png", 100, 100), ("scan.png", 400, 300)):
            m.add(name, data=picture(name, width, height))
        os.symlink("icon.png", m.source + "/link-to-icon.png")
        os.symlink("scan.png", m.source + "/link-to-scan.png")
        m.add("broken.png", data=b"\x89PNG")
        photo = [n for n in os.listdir(DATA + "/corpus") if n.endswith(".jpg")][0]
        shutil.copy(os.path.join(DATA, "corpus", photo), m.source + "/photo.jpg")
        equal(texts(m), ["broken.png.md", "enough.png.md", "link-to-scan.png.md", "photo.jpg.md",
                         "scan.png.md"], "texts")
        fails(errno.ENOENT, open, m.text("icon.png"))
        fails(errno.ENOENT, open, m.text("link-to-icon.png"))
        # An icon that becomes a scan has a text as soon as it is one.
        m.add("icon.png", data=picture("large", 200, 200))
        wait_for(lambda: os.path.exists(m.text("icon.png")), "text of the larger one")


# --- show -------------------------------------------------------------------

@test
def only_texts_are_shown():
    with Mount("show=texts", "prefetch=off") as m:
        tree(m, "a.png", "b.jpg", "x/c.png")
        m.add("notes.txt", data=b"notes")
        m.add("own.png", seed=1)
        m.add("own.png.md", data=b"by hand")
        os.symlink("a.png", m.source + "/link.png")
        equal(listing(m), ["a.png.md", "b.jpg.md", "own.png.md", "x", "x/c.png.md"], "listing")
        for name in ("a.png", "notes.txt", "own.png", "link.png", "x/c.png"):
            fails(errno.ENOENT, os.lstat, m.at(name))
        for name in ("a.png", "x/c.png"):
            equal(read_file(m.text(name)), right_text(m, name), name)
        equal(read_file(m.text("own.png")), b"by hand", "own.png.md")
        # A copy has the texts and nothing else.
        run("cp", "-r", m.path, m.base + "/copy")
        equal(read_file(m.base + "/copy/x/c.png.md"), right_text(m, "x/c.png"), "copy")


# --- errors -----------------------------------------------------------------

BAD = b"this is no picture"
SAID = ["bad.png", "not-an-image"]


@test
def errors_errno_is_an_error():
    with Mount("prefetch=off", allow=SAID) as m:
        m.add("bad.png", data=BAD)
        for _ in range(2):
            fails(errno.EBADMSG, open, m.text("bad.png"))
            equal(texts(m), ["bad.png.md"], "listing")


@test
def errors_hide_takes_the_text_away():
    with Mount("errors=hide", "prefetch=off", allow=SAID) as m:
        m.add("bad.png", data=BAD)
        m.add("good.png")
        equal(texts(m), ["bad.png.md", "good.png.md"], "nobody knows yet")
        fails(errno.ENOENT, open, m.text("bad.png"))
        # The index is sure of a young file once it was hashed again.
        def gone():
            with contextlib.suppress(OSError):
                os.close(os.open(m.text("bad.png"), os.O_RDONLY))
            return texts(m) == ["good.png.md"]
        wait_for(gone, "bad.png.md to go")
        fails(errno.ENOENT, os.stat, m.text("bad.png"))
        equal(read_file(m.at("bad.png")), BAD, "original")
        m.add("bad.png", seed="good now")
        wait_for(lambda: texts(m) == ["bad.png.md", "good.png.md"], "a good one shows")
        equal(read_file(m.text("bad.png")), right_text(m, "bad.png"), "text")


@test
def errors_text_says_why():
    want = b"No text: the content is text, not a picture (not-an-image)\n"
    with Mount("errors=text", "prefetch=off", allow=SAID) as m:
        m.add("bad.png", data=BAD)
        for _ in range(3):
            equal(read_file(m.text("bad.png")), want, "text")
            equal(os.stat(m.text("bad.png")).st_size, len(want), "size")
        equal(texts(m), ["bad.png.md"], "listing")
        check(m.status()["errors"]["count"]["not-an-image"] >= 1, "not counted")
        m.add("bad.png", seed="good now")
        wait_for(lambda: read_file(m.text("bad.png")) == right_text(m, "bad.png"), "the good one")
    # What passes is no text: nobody should find it in a file later.
    with Mount("errors=text", "prefetch=off", engine="null:fail=160x96", allow=["told to fail"]) as m:
        m.add("bad.png", data=picture(1, 160, 96))
        fails(errno.EIO, open, m.text("bad.png"))


# --- size=wait:NAMES --------------------------------------------------------

@test
def size_waits_for_the_programs_named():
    with Mount("size=wait:tar:sta", "prefetch=off", engine="null:100ms") as m:
        name = add_pictures(m, 1)[0]
        size = lambda: int(run("stat", "-c", "%s", m.text(name)))
        equal(size(), 65536, "what stat is told")
        equal(m.status()["pages"]["done"], 0, "pages")
        out = run("tar", "-cC", m.path, name + ".md")
        check(right_text(m, name) in out, "not in the archive")
        equal(m.status()["pages"]["done"], 1, "pages")
        equal(size(), len(right_text(m, name)), "what stat is told then")


# --- xattr ------------------------------------------------------------------

def attributes(path):
    return {n: os.getxattr(path, n).decode() for n in os.listxattr(path)}


@test
def texts_have_attributes():
    with Mount("xattr", "prefetch=off", engine="null:50ms", allow=SAID) as m:
        names = add_pictures(m, 2)
        m.add("bad.png", data=BAD)
        equal(attributes(m.text(names[0])), {"user.ocrfs.state": "unknown"}, "unread")
        equal(m.status()["pages"]["done"], 0, "pages")

        def known():
            read_file(m.text(names[0]))
            return attributes(m.text(names[0]))["user.ocrfs.state"] == "known"
        wait_for(known, "known")
        got = attributes(m.text(names[0]))
        equal(sorted(got), ["user.ocrfs.engine", "user.ocrfs.hash", "user.ocrfs.state"], "names")
        check(got["user.ocrfs.engine"].startswith("null: "), got)
        check(re.fullmatch("[0-9a-f]{32}", got["user.ocrfs.hash"]), got)
        fails(errno.EBADMSG, open, m.text("bad.png"))
        got = attributes(m.text("bad.png"))
        equal((got["user.ocrfs.state"], got["user.ocrfs.error"]),
              ("failed", "the content is text, not a picture (not-an-image)"), "bad")
        # Texts only; and names of others are none.
        for path in (m.at(names[0]), m.path):
            equal(os.listxattr(path), [], path)
            fails(errno.ENODATA, os.getxattr, path, "user.ocrfs.state")
        fails(errno.ENODATA, os.getxattr, m.text(names[0]), "user.other")
        fails(errno.EROFS, os.setxattr, m.text(names[0]), "user.ocrfs.state", b"x")
    with Mount("prefetch=off") as m:
        m.add("a.png")
        fails(errno.EOPNOTSUPP, os.getxattr, m.text("a.png"), "user.ocrfs.state")


# --- verify, partial, control -----------------------------------------------

@test
def verify_hashes_at_every_open():
    def again(m):
        equal(read_file(m.text("a.png")), right_text(m, "a.png"), "text")
        return m.status()["opens"]["known"]

    with Mount("prefetch=off") as m:
        m.add("a.png")
        wait_for(lambda: again(m), "an open that trusts the index")
    with Mount("prefetch=off", "verify", source=m.source, cache=m.cache) as m:
        for _ in range(5):
            equal(again(m), 0, "opens that trusted the index")
        equal((m.status()["opens"]["waited"], m.status()["pages"]["done"]), (5, 0),
              "opens that hashed, and pages")


@test
def partial_serves_what_there_is():
    data = picture("long", 200, 2000)
    for options, works in (([], False), (["partial"], True)):
        with Mount("prefetch=off", *options, allow=["a.png", "truncated"]) as m:
            m.add("a.png", data=data[:-len(data) // 3])
            if not works:
                fails(errno.EBADMSG, open, m.text("a.png"))
                continue
            for _ in range(2):
                check(read_file(m.text("a.png")).startswith(b"# null 200x2000"), "text")
            equal(m.status()["cache"]["texts"], 0, "texts kept")


@test
def the_control_folder_has_another_name_or_none():
    with Mount("control=.state") as m:
        m.add("a.png")
        check(os.path.exists(m.at(".state/status")), "no .state")
        fails(errno.ENOENT, os.stat, m.at(".ocrfs"))
        check(b"mounted at" in run(OCRFS, "status", "--control", ".state", m.path), "status")
    with Mount("control=off") as m:
        m.add("a.png")
        fails(errno.ENOENT, os.stat, m.at(".ocrfs"))
        equal(run(OCRFS, "status", m.path, status=None, stderr=True)[0], 1, "status")


# --- configuration file -----------------------------------------------------

def configure(text):
    folder = os.path.join(os.environ["XDG_CONFIG_HOME"], "ocrfs")
    os.makedirs(folder, exist_ok=True)
    write_file(folder + "/config", text)
    return folder + "/config"


@test
def the_users_file_counts_below_the_command_line():
    configure(b"# mine\nsuffix = .txt\nexclude = *.jpg:old/**/x.png\nshow = texts\n")
    with Mount("prefetch=off") as m:
        tree(m, "a.png", "b.jpg", "old/x.png", "old/y.png")
        equal(listing(m), ["a.png.txt", "old", "old/y.png.txt"], "by the file")
    with Mount("prefetch=off", "show=all", "exclude=", source=m.source) as m:
        equal(len(listing(m)), 9, "by the command line")


@test
def a_wrong_line_is_named_and_nothing_is_mounted():
    path = configure(b"lang = eng\nxattrs = yes\n")
    m = Mount()
    status, _, said = run(*m.argv(), status=None, stderr=True)
    equal(status, 1, "exit")
    check(("%s:2: unknown option 'xattrs' (did you mean 'xattr'?)" % path).encode() in said, said)
    check(not is_mounted(m.path), "mounted")
    for text, what in ((b"size = exact\n", b":1: option 'size'"),
                       (b"\nmin_pixels = many\n", b":2: option 'min_pixels'")):
        configure(text)
        said = run(OCRFS, "status", status=2, stderr=True)[2]
        check(what in said, said)


main()
