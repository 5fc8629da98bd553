#!/usr/bin/env python3
"""Images that change, move, and have many names: a text is always that of the
bytes it was made from, and is made once."""
import ctypes
import os
import sys
import threading
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from harness import *
from scans import *

VERSIONS = [version(i) for i in range(32)]
TEXTS = {null_text(v): v for v in VERSIONS}


def overwrite(path, data):
    """In place: the same file, the same size."""
    with open(path, "r+b", buffering=0) as f:
        f.write(data)


def replace(path, data):
    """A new file under the same name."""
    write_file(path + ".new", data)
    os.rename(path + ".new", path)


def stored_texts_are_right(m):
    """Each version, in a quiet folder with the same cache: its own text, stored
    or made anew."""
    with Mount(source=os.path.join(m.base, "quiet"), cache=m.cache, engine=m.engine) as quiet:
        for i, v in enumerate(VERSIONS):
            quiet.add("%d.png" % i, data=v)
        for i, v in enumerate(VERSIONS):
            equal(read_file(quiet.text("%d.png" % i)), null_text(v), "text of version %d" % i)
        return len(VERSIONS) - pages_read(quiet)


def writer_at_1_khz(change):
    equal(len({len(v) for v in VERSIONS}), 1, "sizes of the versions")
    equal(len(TEXTS), len(VERSIONS), "different texts")
    with Mount(engine="null:1ms", allow=["a.png"]) as m:
        path = m.add("a.png", data=VERSIONS[0])
        stop = threading.Event()
        changes = [0]

        def write():
            while not stop.is_set():
                changes[0] += 1
                change(path, VERSIONS[changes[0] % len(VERSIONS)])
                time.sleep(0.001)

        writer = threading.Thread(target=write)
        writer.start()
        outcomes = collections.Counter()
        try:
            for _ in range(4):
                readers = Readers(m, ["a.png"] * 50)
                readers.join(60)
                for _, status, out, err in readers.results():
                    if status == 0:
                        check(out in TEXTS, "not the text of any version: %r" % out)
                    outcomes["text" if status == 0 else
                             err.decode().rsplit(": ", 1)[-1].strip()] += 1
        finally:
            stop.set()
            writer.join()
        note("%d changes; %s" % (changes[0], dict(outcomes)))
        allowed = {"text", "Device or resource busy", "Stale file handle", "Bad message",
                   "No such file or directory"}
        check(set(outcomes) <= allowed, "outcomes: %s" % dict(outcomes))
        equal(sum(outcomes.values()), 200, "opens")
        # When it is quiet again, it is read. At this pace a new file can have
        # number and times of the one before: then the kernel's one retry may
        # be used up, and that is said.
        last = read_file(path)
        try:
            text = read_file(m.text("a.png"))
        except OSError as e:
            equal(errno.errorcode[e.errno], "ESTALE", "error of the first open")
            text = read_file(m.text("a.png"))
        equal(text, null_text(last), "text of the last version")
    note("%d versions had been stored" % stored_texts_are_right(m))


tests([("in place", overwrite), ("by renaming", replace)], limit=240)(writer_at_1_khz)


@test(limit=120)
def a_rewrite_within_10_ms_of_hashing_gives_the_new_text():
    with Mount(engine="null") as m:
        path = m.add("a.png", data=VERSIONS[0])
        for i in range(1, 21):
            read_file(m.text("a.png"))
            time.sleep(i % 5 * 0.002)
            overwrite(path, VERSIONS[i])
            equal(read_file(m.text("a.png")), null_text(VERSIONS[i]), "text %d" % i)
            check(os.stat(m.text("a.png")).st_size == len(null_text(VERSIONS[i])), "size")


@test(limit=60)
def a_rewrite_that_hides_its_time():
    with Mount(engine="null") as m:
        path = m.add("a.png", data=VERSIONS[0])
        st = os.stat(path)
        equal(read_file(m.text("a.png")), null_text(VERSIONS[0]), "text before")
        overwrite(path, VERSIONS[1])
        os.utime(path, ns=(st.st_atime_ns, st.st_mtime_ns))
        equal(read_file(m.text("a.png")), null_text(VERSIONS[1]), "text after")


@test(limit=60)
def a_touched_image_is_not_read_again():
    with Mount(engine="null") as m:
        path = m.add("a.png", data=VERSIONS[0])
        read_file(m.text("a.png"))
        os.chmod(path, 0o600)
        equal(read_file(m.text("a.png")), null_text(VERSIONS[0]), "text")
        now = time.time_ns() - 50 * 10**9
        os.utime(path, ns=(now, now))
        equal(read_file(m.text("a.png")), null_text(VERSIONS[0]), "text")
        equal(pages_read(m), 1, "pages read")


@test(limit=60)
def an_open_text_stays_what_it_was():
    with Mount(engine="null") as m:
        path = m.add("a.png", data=VERSIONS[0])
        with open(m.text("a.png"), "rb", buffering=0) as f:
            overwrite(path, VERSIONS[1])
            equal(read_file(m.text("a.png")), null_text(VERSIONS[1]), "a new open")
            equal(f.read(), null_text(VERSIONS[0]), "the open one")
            equal(os.fstat(f.fileno()).st_size, len(null_text(VERSIONS[0])), "its size")


@test(limit=60)
def one_content_is_read_once():
    with Mount(engine="null") as m:
        m.add("a.png", data=VERSIONS[0])
        m.add("b.png", data=VERSIONS[0])
        os.link(m.source + "/a.png", m.source + "/hard.png")
        text = null_text(VERSIONS[0])
        for name in ("a.png", "b.png", "hard.png"):
            equal(read_file(m.text(name)), text, "text of " + name)
            equal(os.stat(m.text(name)).st_size, len(text), "size of " + name)
        os.mkdir(m.source + "/sub")
        os.rename(m.source + "/b.png", m.source + "/sub/c.png")
        equal(read_file(m.text("sub/c.png")), text, "text of the renamed one")
        run("cp", "-al", m.source + "/sub", m.source + "/copy")
        # A link changes ctime only: the size is shown at once all the same.
        equal(os.stat(m.text("copy/c.png")).st_size, len(text), "size in the copy")
        equal(read_file(m.text("copy/c.png")), text, "text in the copy")
        equal(pages_read(m), 1, "pages read")
    with Mount(engine="null", source=m.source, cache=m.cache) as again:
        for name in ("a.png", "hard.png", "sub/c.png", "copy/c.png"):
            equal(os.stat(again.text(name)).st_size, len(text), "size of " + name)
            equal(read_file(again.text(name)), text, "text of " + name)
        equal(pages_read(again), 0, "pages read after the remount")


@test(limit=60)
def an_image_that_vanishes_while_it_is_read():
    with Mount(engine="null:1s", allow=["a.png"]) as m:
        path = m.add("a.png", seed=1)
        text = right_text(m, "a.png")
        readers = Readers(m, ["a.png"] * 3)
        wait_for(lambda: m.status()["queue"]["running"] == 1, "the page in the engine")
        os.unlink(path)
        readers.join(20)
        for _, status, out, err in readers.results():
            # The bytes were hashed: their text is right. Else it says so.
            if status == 0:
                equal(out, text, "text")
            else:
                check(b"No such file" in err or b"Stale" in err, err)
        fails(errno.ENOENT, open, m.text("a.png"))


@test(limit=60)
def an_image_that_changes_while_it_is_read():
    for change in (overwrite, replace):
        with Mount(engine="null:1s", allow=["a.png"]) as m:
            path = m.add("a.png", data=VERSIONS[0])
            readers = Readers(m, ["a.png"] * 3)
            wait_for(lambda: m.status()["queue"]["running"] == 1, "the page in the engine")
            change(path, VERSIONS[1])
            readers.join(20)
            for _, status, out, err in readers.results():
                if status == 0:
                    check(out in (null_text(VERSIONS[0]), null_text(VERSIONS[1])), repr(out))
                else:
                    check(b"busy" in err or b"Stale" in err, err)
            equal(read_file(m.text("a.png")), null_text(VERSIONS[1]), "the new text")


@test(limit=60)
def an_image_that_grows_is_read_when_it_is_whole():
    with Mount(engine="null") as m:
        path = os.path.join(m.source, "a.png")
        data = picture(5, 1200, 1600)

        def write():
            with open(path, "wb", buffering=0) as f:
                for at in range(0, len(data), len(data) // 10 + 1):
                    f.write(data[at:at + len(data) // 10 + 1])
                    time.sleep(0.1)

        writer = threading.Thread(target=write)
        writer.start()
        wait_for(lambda: os.path.exists(path), "the file")
        equal(run("cat", m.text("a.png")), null_text(data), "text")
        writer.join()


# --- file handles -------------------------------------------------------------

class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int),
                ("data", ctypes.c_ubyte * 128)]


def handle_of(path):
    libc = ctypes.CDLL(None, use_errno=True)
    handle, mount = Handle(bytes=128), ctypes.c_int()
    if libc.name_to_handle_at(-100, os.fsencode(path), ctypes.byref(handle),
                              ctypes.byref(mount), 0) != 0:
        number = ctypes.get_errno()
        if number in (errno.EOPNOTSUPP, errno.EPERM):
            skip("no handles here: " + os.strerror(number))
        raise OSError(number, os.strerror(number))
    return handle


def open_handle(folder, handle):
    """Bytes of the file, None if the handle is stale."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.open_by_handle_at(folder, ctypes.byref(handle), os.O_RDONLY)
    if fd < 0:
        number = ctypes.get_errno()
        equal(errno.errorcode[number], "ESTALE", "error of open_by_handle_at")
        return None
    with open(fd, "rb") as f:
        return f.read()


@test(limit=60)
def handles_never_reach_another_file_after_a_remount():
    if os.geteuid() != 0:
        skip("open_by_handle_at needs root")
    with Mount(engine="null") as m:
        names = add_pictures(m, 20)
        handles = {}
        for name in names:
            for path in (m.at(name), m.text(name)):
                handles[path] = (handle_of(path), read_file(path))
        folder = os.open(m.path, os.O_RDONLY)
        for path, (handle, content) in handles.items():
            equal(open_handle(folder, handle), content, "handle of " + path)
        os.close(folder)
        m.unmount()
        # Others come first now, so numbers that are counted would be theirs.
        add_pictures(m, 20, "00%02d.png", first=900)
        for name in names[:10]:
            os.unlink(os.path.join(m.source, name))
        m.start()
        for name in sorted(os.listdir(m.path), reverse=True):
            os.stat(m.at(name))
        reached = 0
        folder = os.open(m.path, os.O_RDONLY)
        for path, (handle, content) in handles.items():
            got = open_handle(folder, handle)
            check(got in (None, content), "the handle of %s reached another file" % path)
            reached += got is not None
        os.close(folder)
        note("%d of %d handles reached their file after the remount" % (reached, len(handles)))


main()
