#!/usr/bin/env python3
"""SOURCE goes through the mount unchanged, and nothing can be written."""
import ctypes
import fcntl
import hashlib
import os
import sys
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from harness import *


def tree(m):
    """A SOURCE with a bit of everything; returns the names of its files."""
    os.makedirs(os.path.join(m.source, "sub/deeper"))
    os.mkdir(os.path.join(m.source, "empty"))
    m.add("a.png")
    m.add("sub/b.png")
    m.add("sub/deeper/notes.txt", data=b"some notes\n" * 1000)
    m.add("empty.bin", data=b"")
    m.add("big.bin", data=os.urandom(3 << 20))
    m.add("sparse.bin", data=b"")
    os.truncate(os.path.join(m.source, "sparse.bin"), 5 << 20)
    os.symlink("sub/b.png", os.path.join(m.source, "link"))
    return ["a.png", "sub/b.png", "sub/deeper/notes.txt", "empty.bin", "big.bin",
            "sparse.bin"]


@test
def every_writing_call_answers_erofs():
    with Mount() as m:
        tree(m)
        libc = ctypes.CDLL(None, use_errno=True)
        for target in (m.at("a.png"), m.text("a.png")):
            for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC,
                          os.O_WRONLY | os.O_APPEND, os.O_RDWR | os.O_CREAT):
                fails(errno.EROFS, os.open, target, flags)
            fails(errno.EROFS, os.truncate, target, 0)
            fails(errno.EROFS, os.unlink, target)
            fails(errno.EROFS, os.rename, target, m.at("new"))
            fails(errno.EROFS, os.link, target, m.at("new"))
            fails(errno.EROFS, os.chmod, target, 0o600)
            fails(errno.EROFS, os.chown, target, os.getuid(), os.getgid())
            fails(errno.EROFS, os.utime, target)
            fails(errno.EROFS, os.setxattr, target, "user.x", b"1")
            fails(errno.EROFS, os.removexattr, target, "user.x")
            check(not os.access(target, os.W_OK), "access says writable: " + target)
        fails(errno.EROFS, os.open, m.at("new"), os.O_WRONLY | os.O_CREAT)
        fails(errno.EROFS, os.open, m.path, os.O_RDWR | os.O_TMPFILE)
        fails(errno.EROFS, os.mkdir, m.at("new"))
        fails(errno.EROFS, os.rmdir, m.at("empty"))
        fails(errno.EROFS, os.symlink, "x", m.at("new"))
        fails(errno.EROFS, os.mkfifo, m.at("new"))
        fails(errno.EROFS, os.rename, m.at("sub"), m.at("new"))
        fails(errno.EROFS, os.rename, m.at("new"), m.at("a.png"))
        # RENAME_EXCHANGE
        equal(libc.renameat2(-100, os.fsencode(m.at("a.png")), -100,
                             os.fsencode(m.at("big.bin")), 2), -1, "renameat2")
        equal(ctypes.get_errno(), errno.EROFS, "errno of renameat2")


@test
def a_rw_option_changes_nothing():
    with Mount("rw") as m:
        m.add("a.png")
        fails(errno.EROFS, os.open, m.at("a.png"), os.O_WRONLY)
        check(b"ro" in mount_of(m)[2].split(b","), "mounted writable")


def mount_of(m):
    return [x for x in mounts() if x[0] == os.fsencode(m.path)][-1]


@test
def the_mount_says_what_it_is():
    with Mount() as m:
        _, kind, options, source = mount_of(m)
        equal(kind, b"fuse.ocrfs", "type")
        equal(source, os.fsencode(m.source), "source")
        for flag in (b"ro", b"nosuid", b"nodev"):
            check(flag in options.split(b","), "%r is not in %r" % (flag, options))


@test
def suid_and_dev_are_refused_or_overruled():
    with Mount("suid", "dev") as m:
        options = mount_of(m)[2].split(b",")
        check(b"nosuid" in options and b"nodev" in options, repr(options))


@test
def originals_are_the_same_byte_for_byte():
    with Mount() as m:
        for name in tree(m):
            source = os.path.join(m.source, name)
            equal(hashlib.sha256(read_file(m.at(name))).digest(),
                  hashlib.sha256(read_file(source)).digest(), name)
            run("cmp", source, m.at(name))
        # Somewhere in the middle, across pages, and behind the end.
        want = read_file(os.path.join(m.source, "big.bin"))
        fd = os.open(m.at("big.bin"), os.O_RDONLY)
        for at, size in ((4095, 2), (1 << 20, 131072), ((3 << 20) - 5, 100), (3 << 20, 10),
                         (1 << 40, 10)):
            equal(os.pread(fd, size, at), want[at:at + size], "pread at %d" % at)
        os.close(fd)


@test
def attributes_are_those_of_the_source():
    with Mount() as m:
        names = tree(m) + ["sub", "link", "empty"]
        os.chmod(os.path.join(m.source, "a.png"), 0o751)
        os.chmod(os.path.join(m.source, "sub"), 0o775)
        for name in names:
            a, b = os.lstat(os.path.join(m.source, name)), os.lstat(m.at(name))
            for field in ("st_size", "st_mtime_ns", "st_uid", "st_gid", "st_nlink"):
                equal(getattr(b, field), getattr(a, field), "%s of %s" % (field, name))
            want = a.st_mode & ~0o222 if not stat.S_ISLNK(a.st_mode) else a.st_mode
            equal(oct(b.st_mode), oct(want), "mode of " + name)
            check(b.st_blksize and not b.st_blksize & (b.st_blksize - 1), "st_blksize")
        image, text = os.stat(m.at("a.png")), os.stat(m.text("a.png"))
        equal(text.st_mtime_ns, image.st_mtime_ns, "mtime of the text")
        equal(oct(text.st_mode), oct(image.st_mode & ~0o333), "mode of the text")
        equal((text.st_uid, text.st_gid), (image.st_uid, image.st_gid), "owner")
        check(text.st_ino != image.st_ino, "image and text share an inode number")


@test
def reading_does_not_touch_the_source():
    with Mount() as m:
        path = m.add("a.png")
        os.utime(path, ns=(10**18, 10**18))
        before = os.stat(path)
        read_file(m.at("a.png"))
        read_file(m.text("a.png"))
        after = os.stat(path)
        equal((after.st_atime_ns, after.st_mtime_ns, after.st_ctime_ns),
              (before.st_atime_ns, before.st_mtime_ns, before.st_ctime_ns), "times")


@test
def inode_numbers_of_the_listing_are_those_of_stat():
    with Mount() as m:
        tree(m)
        seen = {}
        for here, folders, _ in os.walk(m.path):
            for entry in os.scandir(here):
                equal(entry.inode(), os.lstat(entry.path).st_ino, entry.path)
                seen.setdefault(entry.inode(), []).append(entry.path)
        check(all(len(v) == 1 for v in seen.values()), "shared inode numbers")


@test
def diff_r_finds_no_difference_but_the_texts():
    need("diff")
    with Mount() as m:
        tree(m)
        out = run("diff", "-r", "--no-dereference", "-x", "*.png.md", m.source, m.path)
        equal(out, b"", "output of diff -r")
        os.mkdir(os.path.join(m.base, "copy"))
        run("cp", "-a", m.path + "/.", os.path.join(m.base, "copy"))
        equal(run("diff", "-r", "-x", "*.png.md", m.source, os.path.join(m.base, "copy")),
              b"", "output of diff -r with a copy")


@test
def rsync_finds_nothing_to_do():
    need("rsync")
    with Mount() as m:
        tree(m)
        out = run("rsync", "-nac", "--no-perms", "--exclude=*.png.md",
                  "--out-format=%i %n", m.path + "/", m.source + "/")
        changed = [l for l in out.decode().splitlines() if not l.startswith(".")]
        equal(changed, [], "what rsync would copy")


@test
def git_sees_the_same_objects():
    need("git")
    with Mount() as m:
        names = tree(m)
        paths = [os.path.join(m.source, n) for n in names], [m.at(n) for n in names]
        want, got = (run("git", "hash-object", *p) for p in paths)
        equal(got, want, "hashes")


@test
def df_shows_the_space_of_the_source():
    with Mount() as m:
        a, b = os.statvfs(m.source), os.statvfs(m.path)
        for field in ("f_bsize", "f_frsize", "f_blocks", "f_files"):
            equal(getattr(b, field), getattr(a, field), field)
        equal(b.f_namemax, 255, "f_namemax")
        check(b.f_flag & os.ST_RDONLY, "not read-only")
        run("df", m.path)


@test
def extended_attributes_are_not_supported_at_no_cost():
    with Mount() as m:
        m.add("a.png")
        for path in (m.at("a.png"), m.text("a.png")):
            fails(errno.EOPNOTSUPP, os.getxattr, path, "user.x")


@test
def locks_work():
    with Mount() as m:
        m.add("a.png")
        with open(m.text("a.png"), "rb") as f:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(f, fcntl.LOCK_SH | fcntl.LOCK_NB)


@test(limit=120)
def seekdir_works_in_a_folder_of_10000_entries():
    with Mount() as m:
        folder = os.path.join(m.source, "many")
        os.mkdir(folder)
        for i in range(5000):
            write_file("%s/%05d.png" % (folder, i), b"")
        # The same program walks both; positions go forwards and backwards.
        out = run(os.path.join(TOOLS, "seekdir"), m.at("many"))
        equal(out, b"10002 entries\n", "output of seekdir")
        names = os.listdir(m.at("many"))
        equal(len(names), 10000, "entries")
        equal(len(set(names)), 10000, "different entries")


@test
def a_listing_that_changes_shows_nothing_twice():
    with Mount() as m:
        for i in range(300):
            m.add("%03d.png" % i, data=b"")
        seen = []
        for i, entry in enumerate(os.scandir(m.path)):
            seen.append(entry.name)
            if i % 10 == 0:
                os.unlink(os.path.join(m.source, "%03d.png" % (i // 2)))
                m.add("new%03d.png" % i, data=b"")
        equal(len(seen), len(set(seen)), "entries seen once")


@test
def a_folder_opened_before_sees_its_own_files_after():
    with Mount() as m:
        tree(m)
        fd = os.open(m.at("sub"), os.O_RDONLY | os.O_DIRECTORY)
        here = os.open("deeper/notes.txt", os.O_RDONLY, dir_fd=fd)
        equal(os.read(here, 5), b"some ", "content")
        os.close(here)
        os.rename(os.path.join(m.source, "sub"), os.path.join(m.source, "moved"))
        wait_for(lambda: os.path.exists(m.at("moved/b.png.md")), "the new name")
        os.close(fd)


main()
