#!/usr/bin/env python3
"""What changes in SOURCE shows at once where a folder is watched, and within a
second where it is not. OCRFS_LONG=1 runs the storms for as long as it takes to
trust them: 10 s and 10 minutes."""
import ctypes
import mmap
import os
import random
import sys
import threading
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from harness import *
from scans import *

LONG = bool(os.environ.get("OCRFS_LONG"))
# What the kernel was told for long would go by itself after a minute; all else
# after a second. So this limit tells a change that was heard from one that
# was not, however busy the machine is.
HEARD = 20
OLD_NS = 100 * 10**9


def watch_of(m):
    return m.status()["watch"]


def look(m, *names):
    """Lets the kernel know all of it: folders, images, texts that are read."""
    os.listdir(m.path)
    for name in names:
        read_file(m.text(name))
        os.stat(m.at(name))
        os.stat(m.text(name))


def exists(path):
    try:
        os.stat(path)
        return True
    except FileNotFoundError:
        return False


def make_old(path):
    then = time.time_ns() - OLD_NS
    os.utime(path, ns=(then, then))


def settled(m, *names):
    """What is looked at now lasts: the texts are known for sure, since the
    images were two seconds old when they were hashed, and nobody has had these
    open: the mount does not know its own opens from others', so another one
    reads them."""
    newest = max(os.stat(m.source + "/" + name).st_ctime for name in names)
    wait_for(lambda: time.time() - newest > 2.1, "images that are old enough")
    for name in names:
        read_file(m.text(name))
    m.unmount()
    m.start()
    os.listdir(m.path)
    for name in names:
        os.stat(m.at(name))
        os.stat(m.text(name))


def shown(what, times, limit):
    """The best of several tries decides: it says what the program does, the
    others what else the machine had to do."""
    note("%s: shows after %.3f s (%.3f to %.3f)" % (
        what, sorted(times)[len(times) // 2], min(times), max(times)))
    check(min(times) < limit, "%s: never within %g s: %s" % (what, limit, times))


def time_until(condition, what):
    begin = time.monotonic()
    wait_for(condition, what, HEARD)
    return time.monotonic() - begin


def same_times(m, name):
    return os.stat(m.text(name)).st_mtime_ns == os.stat(m.source + "/" + name).st_mtime_ns


def same_file(m, name):
    a, b = os.stat(m.at(name)), os.stat(m.source + "/" + name)
    return (a.st_mtime_ns, a.st_size) == (b.st_mtime_ns, b.st_size)


# --- one change ----------------------------------------------------------------

NAMES = ["%02d.png" % i for i in range(8)]


@test
def a_new_image_shows():
    with Mount() as m:
        times = []
        os.listdir(m.path)
        for i, name in enumerate(NAMES):
            check(not exists(m.text(name)), "there before")  # and that is kept
            m.add(name, seed=i)
            times.append(time_until(lambda: exists(m.text(name)), name))
            equal(read_file(m.text(name)), right_text(m, name), "its text")
        shown("new", times, 0.2)


@test
def a_deleted_image_goes():
    with Mount() as m:
        add_pictures(m, 8, "%02d.png")
        settled(m, *NAMES)
        times = []
        for name in NAMES:
            os.unlink(m.source + "/" + name)
            times.append(time_until(lambda: not exists(m.text(name)), name))
            wait_for(lambda: not exists(m.at(name)), "the image", HEARD)
        shown("deleted", times, 0.2)


@test
def a_renamed_image_shows():
    with Mount() as m:
        add_pictures(m, 8, "%02d.png")
        settled(m, *NAMES)
        times = []
        for name in NAMES:
            text = right_text(m, name)
            check(not exists(m.text("new" + name)), "there before")
            os.rename(m.source + "/" + name, m.source + "/new" + name)
            times.append(time_until(lambda: exists(m.text("new" + name)) and
                                    not exists(m.text(name)), name))
            equal(read_file(m.text("new" + name)), text, "its text")
        shown("renamed", times, 0.2)
        equal(pages_read(m), 0, "pages read again")


def replace(path, data):
    write_file(path + ".part", data)
    os.rename(path + ".part", path)


def rewrite(path, data):
    write_file(path, data)


@tests([("in place", rewrite), ("by renaming", replace)])
def a_changed_image_shows(change):
    with Mount() as m:
        add_pictures(m, 8, "%02d.png")
        settled(m, *NAMES)
        times = []
        for i, name in enumerate(NAMES):
            path = m.source + "/" + name
            change(path, picture(100 + i))
            times.append(time_until(lambda: same_times(m, name), name))
            wait_for(lambda: same_file(m, name), "the image", HEARD)
            equal(read_file(m.text(name)), right_text(m, name), "its text")
        shown("changed", times, 0.2)


@test
def a_changed_mode_shows():
    with Mount() as m:
        add_pictures(m, 8, "%02d.png")
        settled(m, *NAMES)
        times = []
        for name in NAMES:
            os.chmod(m.source + "/" + name, 0o600)
            times.append(time_until(
                lambda: stat.S_IMODE(os.stat(m.text(name)).st_mode) == 0o400, name))
        shown("chmod", times, 0.2)


# --- changes without an event of their own ---------------------------------------

@test
def an_append_shows():
    with Mount() as m:
        add_pictures(m, 4, "%02d.png")
        settled(m, *NAMES[:4])
        times = []
        for name in NAMES[:4]:
            with open(m.source + "/" + name, "ab", buffering=0) as f:
                f.write(b"x")
                times.append(time_until(lambda: same_times(m, name) and same_file(m, name), name))
        shown("appended to, not closed", times, 1.2)


@test
def an_edit_through_a_link_shows():
    with Mount() as m:
        add_pictures(m, 4, "%02d.png")
        os.mkdir(m.base + "/elsewhere")  # never watched
        for name in NAMES[:4]:
            os.link(m.source + "/" + name, m.base + "/elsewhere/" + name)
        settled(m, *NAMES[:4])
        times = []
        for i, name in enumerate(NAMES[:4]):
            write_file(m.base + "/elsewhere/" + name, picture(100 + i))
            times.append(time_until(lambda: same_times(m, name) and same_file(m, name), name))
            equal(read_file(m.text(name)), right_text(m, name), "its text")
        shown("edited through a link", times, 1.2)


@test
def an_edit_through_a_mapping_shows():
    with Mount() as m:
        for i in range(4):
            m.add(NAMES[i], data=version(i))
        settled(m, *NAMES[:4])
        times = []
        for i, name in enumerate(NAMES[:4]):
            data = version(10 + i)
            with open(m.source + "/" + name, "r+b") as f, mmap.mmap(f.fileno(), 0) as mapping:
                mapping[:] = data
                times.append(time_until(lambda: same_times(m, name) and same_file(m, name), name))
                equal(read_file(m.text(name)), null_text(data), "its text")
        shown("edited through a mapping", times, 1.2)


@test
def an_open_original_that_changes_is_read_anew():
    with Mount() as m:
        path = m.add("a.png", data=b"1" * 10000)
        with open(m.at("a.png"), "rb", buffering=0) as f:
            equal(f.read(20000), b"1" * 10000, "before")
            with open(path, "r+b", buffering=0) as g:
                g.write(b"2" * 10000)
            make_old(path)

            def again():
                f.seek(0)
                return f.read(20000) == b"2" * 10000
            note("shows after %.3f s" % time_until(again, "the new bytes"))


# --- files that are being written ---------------------------------------------------

@test
def a_closed_image_is_read_at_once():
    with Mount("prefetch=off") as m:
        os.listdir(m.path)
        times = []
        for i, name in enumerate(NAMES):
            write_file(m.source + "/" + name, picture(i))
            begin = time.monotonic()
            equal(read_file(m.text(name)), right_text(m, name), "its text")
            times.append(time.monotonic() - begin)
        # Without the close it has to stand still for half a second.
        shown("closed just now: its text", times, 0.4)


def write_in_steps(path, data, steps, pause):
    """As a scanner does; how long it took."""
    begin = time.monotonic()
    with open(path, "wb", buffering=0) as f:
        for i in range(steps):
            f.write(data[len(data) * i // steps:len(data) * (i + 1) // steps])
            if i < steps - 1:
                time.sleep(pause)
    return time.monotonic() - begin


@test
def an_image_written_in_steps_is_read_when_it_is_closed():
    with Mount(allow=["truncated"]) as m:
        os.listdir(m.path)
        for name in NAMES:
            path, took = m.source + "/" + name, []
            writer = threading.Thread(target=lambda: took.append(
                write_in_steps(path, picture(7, 1200, 1600), 3, 0.8)))
            writer.start()
            wait_for(lambda: exists(path) and os.path.getsize(path), "the first step")
            status, out, _ = run("cat", m.text(name), status=None, stderr=True)
            writer.join()
            if took[0] < 2.5:
                equal((status, out), (0, right_text(m, name)), "its text")
                return
            # After three seconds the reader gets what there is: try again.
        skip("the machine is too busy to write a file within 2.5 s")


# --- folders --------------------------------------------------------------------

@test
def folders_that_move_and_go():
    with Mount() as m:
        os.makedirs(m.source + "/a/sub")
        m.add("a/sub/x.png", seed=1)
        settled(m, "a/sub/x.png")
        text = right_text(m, "a/sub/x.png")
        equal(read_file(m.text("a/sub/x.png")), text, "before")
        inside = os.open(m.at("a/sub"), os.O_RDONLY)
        try:
            os.mkdir(m.source + "/b")
            os.rename(m.source + "/a/sub", m.source + "/b/moved")
            wait_for(lambda: not exists(m.at("a/sub")), "the old name to go", HEARD)
            equal(read_file(m.text("b/moved/x.png")), text, "moved")
            # Who is inside stays there, and hears of what happens.
            equal(sorted(os.listdir(inside)), ["x.png", "x.png.md"], "from inside")
            m.add("b/moved/y.png", seed=2)
            wait_for(lambda: exists(m.text("b/moved/y.png")), "a new one", HEARD)
            os.unlink(m.source + "/b/moved/x.png")
            wait_for(lambda: not exists(m.text("b/moved/x.png")), "a deleted one", HEARD)
        finally:
            os.close(inside)
        # Deleted, and another of the same name.
        shutil.rmtree(m.source + "/b/moved")
        wait_for(lambda: not exists(m.at("b/moved")), "the folder to go", HEARD)
        os.mkdir(m.source + "/b/moved")
        m.add("b/moved/z.png", seed=3)
        wait_for(lambda: exists(m.text("b/moved/z.png")), "the new folder", HEARD)
        equal(sorted(os.listdir(m.at("b/moved"))), ["z.png", "z.png.md"], "its files")
        # Out of SOURCE, and back in with something more.
        os.rename(m.source + "/b/moved", m.base + "/out")
        wait_for(lambda: not exists(m.at("b/moved")), "the folder to go", HEARD)
        shutil.copy(m.base + "/out/z.png", m.base + "/out/w.png")
        os.rename(m.base + "/out", m.source + "/c")
        wait_for(lambda: exists(m.text("c/w.png")), "the folder to come", HEARD)
        equal(read_file(m.text("c/w.png")), right_text(m, "c/w.png"), "its text")


@test
def a_shell_stays_in_a_folder_whose_mode_changes():
    with Mount() as m:
        os.mkdir(m.source + "/a")
        os.listdir(m.at("a"))
        shell = start("sh", "-c", "cd \"$1\" && while read x; do pwd -P; done", "sh",
                      m.at("a"), stdin=subprocess.PIPE)
        for _ in range(5):
            told = watch_of(m)["told"]
            os.chmod(m.source + "/a", 0o700)
            os.chmod(m.source + "/a", 0o755)
            wait_for(lambda: watch_of(m)["told"] > told, "the event", HEARD)
            shell.stdin.write(b"\n")
            shell.stdin.flush()
            equal(shell.stdout.readline().strip(), os.fsencode(m.at("a")), "where it is")
        shell.stdin.close()
        equal(shell.wait(10), 0, "exit of the shell")


@test
def what_is_mounted_in_source_shows():
    if os.geteuid() != 0:
        skip("only root mounts")
    with Mount() as m:
        os.mkdir(m.source + "/disk")
        m.add("disk/a.png", seed=1)
        look(m, "disk/a.png")
        run("mount", "-t", "tmpfs", "none", m.source + "/disk")
        try:
            m.add("disk/b.png", seed=2)
            wait_for(lambda: exists(m.text("disk/b.png")), "what is on it", HEARD)
            check(not exists(m.text("disk/a.png")), "what is below it")
            equal(read_file(m.text("disk/b.png")), right_text(m, "disk/b.png"), "text")
        finally:
            run("umount", "-l", m.source + "/disk")
        wait_for(lambda: exists(m.text("disk/a.png")), "what was below", HEARD)
        check(not exists(m.text("disk/b.png")), "what was on it")


# --- where nothing is watched -----------------------------------------------------

def changes_show(m, folder):
    """Something new, changed and gone, without any help of a watch."""
    m.add(folder + "/a.png", seed=1)
    look(m, folder + "/a.png")
    m.add(folder + "/b.png", seed=2)
    wait_for(lambda: exists(m.text(folder + "/b.png")), "a new one", HEARD)
    rewrite(m.source + "/" + folder + "/a.png", picture(3))
    wait_for(lambda: same_times(m, folder + "/a.png"), "a changed one", HEARD)
    equal(read_file(m.text(folder + "/a.png")), right_text(m, folder + "/a.png"), "its text")
    os.unlink(m.source + "/" + folder + "/a.png")
    wait_for(lambda: not exists(m.text(folder + "/a.png")), "a deleted one", HEARD)


@test
def the_most_that_may_be_watched():
    with Mount("watch=3", "prefetch=off") as m:  # which keeps folders open
        for i in range(6):
            os.mkdir(m.source + "/%d" % i)
            os.listdir(m.at("%d" % i))
        equal(watch_of(m)["folders"], 3, "folders watched")
        wait_for(lambda: watch_of(m)["full"], "it in status.json")
        for i in (0, 5):
            changes_show(m, "%d" % i)
        equal(len(lines_with(m, "watch=N")), 1, "lines in the log")
        # What the kernel forgets makes room.
        for i in range(6):
            shutil.rmtree(m.source + "/%d" % i)
        wait_for(lambda: watch_of(m)["folders"] == 1, "the room", HEARD)


@test
def without_watches():
    with Mount("watch=off") as m:
        os.mkdir(m.source + "/a")
        changes_show(m, "a")
        equal((watch_of(m)["on"], watch_of(m)["folders"], watch_of(m)["events"]),
              (False, 0, 0), "on, folders, events")


def limited(name, value):
    """This test alone, in a user namespace with a limit of its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(0x10000000 | 0x00020000) != 0:  # CLONE_NEWUSER | CLONE_NEWNS
        skip("no user namespace: " + os.strerror(ctypes.get_errno()))
    try:
        write_file("/proc/self/setgroups", b"deny")
        write_file("/proc/self/uid_map", b"0 %d 1" % uid)
        write_file("/proc/self/gid_map", b"0 %d 1" % gid)
        write_file("/proc/sys/user/" + name, b"%d" % value)
    except OSError as e:
        skip("no limits of one's own here: %s" % e)


@test
def the_limit_of_the_system_is_reached():
    limited("max_inotify_watches", 3)
    with Mount() as m:
        for i in range(6):
            os.mkdir(m.source + "/%d" % i)
            os.listdir(m.at("%d" % i))
        equal(watch_of(m)["folders"], 3, "folders watched")
        for i in (0, 5):
            changes_show(m, "%d" % i)
        equal(len(lines_with(m, "sysctl fs.inotify.max_user_watches=")), 1, "lines in the log")


@test
def no_inotify_can_be_had():
    limited("max_inotify_instances", 0)
    with Mount() as m:
        os.mkdir(m.source + "/a")
        changes_show(m, "a")
        check(not watch_of(m)["on"], "on")
        equal(len(lines_with(m, "sysctl fs.inotify.max_user_instances=")), 1, "lines in the log")


@test
def a_file_system_without_events():
    need(os.path.join(TOOLS, "slowfs"))
    base = os.environ["OCRFS_TEST_DIR"]
    real, front = base + "/real", base + "/front"
    os.makedirs(real + "/a")
    os.mkdir(front)
    disk = start(os.path.join(TOOLS, "slowfs"), real, front, "0",
                 stdout=None, stderr=None)
    wait_for(lambda: is_mounted(front), "the disk")
    try:
        with Mount(source=front) as m:
            os.listdir(m.at("a"))
            # Beside the mount, as another machine would.
            m.source = real
            changes_show(m, "a")
            equal((watch_of(m)["on"], watch_of(m)["folders"]), (True, 0), "on, folders")
    finally:
        run("fusermount3", "-u", front, status=None)
        disk.wait(10)


# --- more than can be heard ---------------------------------------------------------

def storm(folder, seconds, rate, seed):
    """Creates, deletes and renames so many names a second; how many it did."""
    choose = random.Random(seed)
    names = [folder + "/%03d.png" % i for i in range(300)]
    begin, done = time.monotonic(), 0
    while time.monotonic() < begin + seconds:
        while done < (time.monotonic() - begin) * rate:
            name = choose.choice(names)
            try:
                what = choose.randrange(3)
                if what == 0:
                    os.close(os.open(name, os.O_WRONLY | os.O_CREAT))
                elif what == 1:
                    os.unlink(name)
                else:
                    os.rename(name, choose.choice(names))
            except FileNotFoundError:
                pass
            done += 1
        time.sleep(0.0005)
    return done


def as_in_source(m, folder, names):
    """Whether listing and stat say what is there."""
    want = set(os.listdir(m.source + "/" + folder))
    got = os.listdir(m.at(folder))
    images = {n for n in got if not n.endswith(".md")}
    texts = {n for n in got if n.endswith(".md")}
    return (images == want and texts == {n + ".md" for n in want} and
            all(exists(m.at(folder + "/" + n)) == (n in want) and
                exists(m.text(folder + "/" + n)) == (n in want) for n in names))


@test(limit=120)
def a_storm_of_changes():
    with Mount() as m:
        os.mkdir(m.source + "/a")
        names = ["%03d.png" % i for i in range(300)]
        for name in names:
            m.add("a/" + name, data=b"")
        os.listdir(m.at("a"))
        stop, times = threading.Event(), []

        def reader():
            while not stop.is_set():
                for name in os.listdir(m.at("a")):
                    exists(m.at("a/" + name))
        threads = [threading.Thread(target=reader) for _ in range(2)]
        for t in threads:
            t.start()
        try:
            seconds = 10 if LONG else 3
            done = storm(m.source + "/a", seconds, 10000, 1)
        finally:
            stop.set()
        times.append(time_until(lambda: as_in_source(m, "a", names), "the right listing"))
        for t in threads:
            t.join()
        note("%d changes in %g s (%s), right after %.3f s" % (done, seconds, watch_of(m), times[0]))


@test(limit=120)
def changes_that_were_lost():
    """More than the kernel keeps, while ocrfs does not run."""
    with open("/proc/sys/fs/inotify/max_queued_events") as f:
        most = int(f.read())
    with Mount() as m:
        os.mkdir(m.source + "/a")
        names = ["%04d.png" % i for i in range(60)]
        for i, name in enumerate(names):
            m.add("a/" + name, seed=i)
        settled(m, *["a/" + name for name in names])
        os.listdir(m.at("a"))
        for name in names:
            os.stat(m.text("a/" + name))
        texts = {name: right_text(m, "a/" + name) for name in names}
        os.kill(m.pid, signal.SIGSTOP)
        for i in range(most // 2 + 100):  # each two events
            path = m.source + "/a/x%d" % i
            os.symlink("x", path)
            os.unlink(path)
        for name in names[:20]:
            os.unlink(m.source + "/a/" + name)
        for i, name in enumerate(names[20:40]):
            rewrite(m.source + "/a/" + name, picture(500 + i))
        for name in names[40:50]:
            os.rename(m.source + "/a/" + name, m.source + "/a/new" + name)
        os.kill(m.pid, signal.SIGCONT)
        wait_for(lambda: watch_of(m)["lost"], "the loss to be heard", HEARD)
        every = names + ["new" + name for name in names]
        took = time_until(lambda: as_in_source(m, "a", every), "all names")
        took += time_until(lambda: all(same_times(m, "a/" + name) for name in names[20:40]),
                          "all times")
        note("as it is after %.3f s" % took)
        for name in names[20:40]:
            equal(read_file(m.text("a/" + name)), right_text(m, "a/" + name), "a changed one")
        for name in names[40:50]:
            equal(read_file(m.text("a/new" + name)), texts[name], "a renamed one")
        wait_for(lambda: watch_of(m)["sound"], "that all is made up for", HEARD)
        # And from then on it is heard again.
        os.unlink(m.source + "/a/" + names[55])
        wait_for(lambda: not exists(m.text("a/" + names[55])), "the next change", HEARD)


# --- all at once ----------------------------------------------------------------

READ = r"""
import os, random, sys
root, seed = sys.argv[1], int(sys.argv[2])
choose, done = random.Random(seed), 0
texts = set(sys.stdin.buffer.read().split(b"\0"))
while True:
    try:
        for here, folders, files in os.walk(root):
            choose.shuffle(files)
            for name in files[:20]:
                path = os.path.join(here, name)
                try:
                    if choose.randrange(3) and name.endswith(".md"):
                        with open(path, "rb") as f:
                            text = f.read()
                            if text not in texts:
                                print("wrong text of %s: %r" % (path, text[:100]), flush=True)
                            if len(text) != os.fstat(f.fileno()).st_size:
                                print("wrong size of " + path, flush=True)
                    else:
                        os.stat(path)
                except OSError:
                    pass
                done += 1
    except OSError:
        pass
    print("at", done, flush=True)
"""


def change_at_random(root, choose, pictures):
    """One change somewhere in a tree of a few folders."""
    folders = [root + "/%d" % i for i in range(4)] + [root + "/%d/sub" % i for i in range(4)]
    path = "%s/%02d.png" % (choose.choice(folders), choose.randrange(12))
    other = "%s/%02d.png" % (choose.choice(folders), choose.randrange(12))
    what = choose.randrange(9)
    if what <= 2:
        write_file(path, choose.choice(pictures))
        if choose.randrange(2):
            make_old(path)
    elif what == 3:
        replace(path, choose.choice(pictures))
    elif what == 4:
        os.unlink(path)
    elif what == 5:
        os.rename(path, other)
    elif what == 6:
        os.link(path, other)
    elif what == 7:
        os.chmod(path, choose.choice([0o600, 0o644]))
    elif choose.randrange(10) == 0:
        folder = choose.choice(folders[4:])
        if os.path.isdir(folder):
            os.rename(folder, root + "/%d/sub" % choose.randrange(4))
        else:
            os.mkdir(folder)


@test(limit=900)
def random_changes_under_sixteen_readers():
    with Mount(allow=["png: "]) as m:
        for i in range(4):
            os.makedirs(m.source + "/%d/sub" % i)
        pictures = [version(i) for i in range(40)]
        texts = b"\0".join(null_text(p) for p in pictures)
        choose = random.Random(time.time_ns())
        readers = []
        for i in range(16):
            out = open(m.base + "/out%d" % i, "wb")
            p = start(sys.executable, "-c", READ, m.path, str(i), stdin=subprocess.PIPE, stdout=out)
            p.stdin.write(texts)
            p.stdin.close()
            readers.append((p, m.base + "/out%d" % i))
        end, done = time.monotonic() + (600 if LONG else 30), 0
        while time.monotonic() < end:
            for _ in range(20):
                with contextlib.suppress(FileNotFoundError, FileExistsError, OSError):
                    change_at_random(m.source, choose, pictures)
                done += 1
            time.sleep(0.01)
        # Each goes on: nobody is stuck.
        sizes = [os.path.getsize(path) for _, path in readers]
        for (p, path), size in zip(readers, sizes):
            wait_for(lambda: os.path.getsize(path) > size, "a reader to go on", 60)
            check(p.poll() is None, "a reader ended")
        for p, path in readers:
            p.kill()
            p.wait()
        for p, path in readers:
            wrong = [l for l in read_file(path).splitlines() if l.startswith(b"wrong")]
            check(not wrong, wrong[:3])
        w = watch_of(m)
        note("%d changes, %d walks; %s" % (
            done, sum(read_file(path).count(b"at") for _, path in readers), w))
        # And what is quiet now shows as it is.
        for i in range(4):
            for folder in ("%d" % i, "%d/sub" % i):
                if os.path.isdir(m.source + "/" + folder):
                    wait_for(lambda: {n for n in os.listdir(m.at(folder)) if n.endswith(".png")} ==
                             {n for n in os.listdir(m.source + "/" + folder)
                              if n.endswith(".png")}, "the listing", HEARD)
                    for name in os.listdir(m.source + "/" + folder):
                        if name.endswith(".png"):
                            equal(read_file(m.text(folder + "/" + name)),
                                  right_text(m, folder + "/" + name), "a text")


main()
