#!/usr/bin/env python3
"""What ordinary programs get from a text that nobody has read before.

With the default (size=bound) a program gets the whole text, fails loudly, or
gets it with NUL bytes behind; never less. With size=wait all get it exactly.
With size=zero those that trust the size see an empty file, the others all.
"""
import hashlib
import os
import sys
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from harness import *

NAME = "page.png"
TEXT = NAME + ".md"
# A text of three pages of memory, so that a cut at a border would show.
ENGINE = "null:20ms:big=320x96x10007"


class Loud(Exception):
    """The program said that something was wrong."""


def do(*argv, **kwargs):
    status, out, err = run(*argv, status=None, stderr=True, **kwargs)
    if status != 0:
        raise Loud("exit %d: %s" % (status, err.decode(errors="replace").strip()[-200:]))
    return out


class Case:
    """What a program works with: `path` the unread text, `folder` the mounted
    folder with nothing else in it but the image, `out` an empty folder, `truth`
    the text as `ocrfs read` prints it."""

    def __init__(self, mount, truth):
        self.path, self.folder, self.truth = mount.text(NAME), mount.path, truth
        self.out = os.path.join(mount.base, "out")
        os.mkdir(self.out)
        self.copy = os.path.join(self.out, "copy")

    def lines(self):
        return self.truth.splitlines(keepends=True)


# One entry a program: name -> (programs it needs, function, works with zero).
# The function returns what arrived, which must be the truth (or what the
# program makes of the truth: then a pair of got and wanted).
programs = {}


def program(name, *needs, zero=True):
    def register(function):
        programs[name] = (needs, function, zero)
        return function
    return register


def stdout_of(name, *argv, needs=(), zero=True, want=None):
    """A program whose standard output is the text (or want(case))."""
    def function(c):
        got = do(*[c.path if a == "PATH" else a for a in argv], cwd=c.folder)
        return (got, want(c)) if want else got
    programs[name] = (needs or (argv[0],), function, zero)


stdout_of("cat", "cat", "PATH")
stdout_of("dd", "dd", "if=" + TEXT, "status=none")
stdout_of("head", "head", "-c", "1000000", "PATH")
stdout_of("tail -c", "tail", "-c", "100", "PATH", want=lambda c: c.truth[-100:])
stdout_of("tail -n", "tail", "-n", "2", "PATH", want=lambda c: b"".join(c.lines()[-2:]))
stdout_of("sort", "sort", "PATH", want=lambda c: b"".join(sorted(c.lines())),
          needs=("sort",))
stdout_of("tac", "tac", "PATH", want=lambda c: b"".join(c.lines()[::-1]))
stdout_of("awk", "awk", "{ print }", "PATH")
stdout_of("sed", "sed", "", "PATH")
stdout_of("less", "less", "PATH")
stdout_of("wc -c", "wc", "-c", "PATH",
          want=lambda c: b"%d %s\n" % (len(c.truth), os.fsencode(c.path)))
# With several files it asks for the sizes before it opens the first.
stdout_of("wc -c of two", "sh", "-c", 'wc -c "$1" /dev/null | { read n _; echo $n; }',
          "sh", "PATH", needs=("wc",), want=lambda c: b"%d\n" % len(c.truth))
stdout_of("wc -l", "wc", "-l", "PATH",
          want=lambda c: b"%d %s\n" % (len(c.lines()), os.fsencode(c.path)))
stdout_of("md5sum", "md5sum", "PATH", want=lambda c: b"%s  %s\n" % (
    hashlib.md5(c.truth).hexdigest().encode(), os.fsencode(c.path)))
stdout_of("grep", "grep", "", "PATH")
stdout_of("grep -r", "grep", "-rh", "--include=*.md", "", ".")
stdout_of("ripgrep with mmap", "rg", "--mmap", "-N", "", "PATH")
stdout_of("ripgrep of a folder", "rg", "-NI", "-g", "*.md", "")
stdout_of("busybox cat", "busybox", "cat", "PATH", zero=False)
stdout_of("git hash-object", "git", "hash-object", "PATH",
          want=lambda c: hashlib.sha1(b"blob %d\0" % len(c.truth) + c.truth)
          .hexdigest().encode() + b"\n")
stdout_of("find -empty", "find", "PATH", "-empty", want=lambda c: b"", zero=False)
stdout_of("test -s", "test", "-s", "PATH", want=lambda c: b"", zero=False)
stdout_of("file", "file", "-b", "--mime-encoding", "PATH",
          want=lambda c: b"us-ascii\n" if c.truth.isascii() else b"utf-8\n", zero=False)
stdout_of("node", "node", "-e",
          "process.stdout.write(require('fs').readFileSync('%s'))" % TEXT)
for way, zero in (("sendfile", False), ("splice", False), ("mmap", False),
                  ("statread", False), ("seek", True), ("direct", True)):
    stdout_of(way + " in C", os.path.join(TOOLS, "readways"), way, "PATH", zero=zero)
for name, script, zero in (
        ("read", "sys.stdout.buffer.write(open(p, 'rb').read())", True),
        ("mmap", "import mmap; f = open(p, 'rb'); sys.stdout.buffer.write("
                 "mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)[:])", True)):
    stdout_of("python " + name, sys.executable, "-c",
              "import sys; p = '%s'; %s" % (TEXT, script), zero=zero)


def copier(name, *argv, zero=True):
    """A program that copies PATH to COPY."""
    @program(name, argv[0], zero=zero)
    def function(c):
        do(*[{"PATH": c.path, "COPY": c.copy}.get(a, a) for a in argv], cwd=c.out)
        return read_file(c.copy) if os.path.exists(c.copy) else b""


copier("cp", "cp", "PATH", "COPY")
copier("cp -a", "cp", "-a", "PATH", "COPY")
copier("cp --sparse", "cp", "--sparse=always", "PATH", "COPY")
copier("cp --reflink", "cp", "--reflink=auto", "PATH", "COPY")
copier("install", "install", "-m", "600", "PATH", "COPY")
copier("busybox cp", "busybox", "cp", "PATH", "COPY", zero=False)
copier("rsync", "rsync", "-a", "PATH", "COPY")
copier("rsync -c", "rsync", "-ac", "PATH", "COPY")
copier("rsync --inplace", "rsync", "-a", "--inplace", "PATH", "COPY")
copier("rsync -S", "rsync", "-aS", "PATH", "COPY")
copier("rsync --size-only", "rsync", "-a", "--size-only", "PATH", "COPY")
copier("rsync --min-size", "rsync", "-a", "--min-size=1", "PATH", "COPY", zero=False)
copier("python copyfile", sys.executable, "-c",
       "import shutil, sys; shutil.copyfile(*sys.argv[1:])", "PATH", "COPY")
copier("vim", shutil.which("vim") and "vim" or "vim.tiny", "-u", "NONE", "-es",
       "-c", "w! copy", "-c", "q!", "PATH")


@program("a second rsync", "rsync")
def second_rsync(c):
    do("rsync", "-a", c.path, c.copy)
    return do("rsync", "-ai", c.path, c.copy), b""


@program("cmp", "cmp")
def compare(c):
    write_file(c.copy, c.truth)
    do("cmp", c.path, c.copy)
    return c.truth


@program("diff -q", "diff")
def diff(c):
    write_file(c.copy, c.truth)
    do("diff", "-q", c.path, c.copy)
    return c.truth


def archiver(name, pack, unpack, zero=False, stdin=None):
    """PACK makes the archive COPY of TEXT, UNPACK prints the member."""
    @program(name, pack[0], unpack[0], zero=zero)
    def function(c):
        def fill(argv):
            return [a.replace("COPY", c.copy) for a in argv]
        out = do(*fill(pack), cwd=c.folder, stdin=stdin)
        if not os.path.exists(c.copy):
            write_file(c.copy, out)
        return do(*fill(unpack), cwd=c.out)


archiver("tar", ["tar", "-cf", "COPY", TEXT], ["tar", "-xOf", "COPY"])
archiver("tar -S", ["tar", "-Scf", "COPY", TEXT], ["tar", "-xOf", "COPY"])
archiver("bsdtar", ["bsdtar", "-cf", "COPY", TEXT], ["bsdtar", "-xOf", "COPY"])
archiver("cpio", ["cpio", "-o", "-H", "newc"],
         ["cpio", "-i", "--to-stdout", "--quiet", "-F", "COPY"], stdin=TEXT.encode() + b"\n")
archiver("zip", ["zip", "-q", "COPY", TEXT], ["unzip", "-p", "COPY"], zero=True)
archiver("7z", ["7z", "a", "-bd", "COPY.7z", TEXT], ["7z", "x", "-so", "COPY.7z"])
archiver("busybox tar", ["busybox", "tar", "-cf", "COPY", TEXT], ["tar", "-xOf", "COPY"])
archiver("python tarfile", [sys.executable, "-m", "tarfile", "-c", "COPY", TEXT],
         ["tar", "-xOf", "COPY"])
archiver("python zipfile", [sys.executable, "-m", "zipfile", "-c", "COPY", TEXT],
         ["unzip", "-p", "COPY"], zero=True)


@program("git add", "git", zero=False)
def git_add(c):
    git = ["git", "--git-dir", c.copy, "--work-tree", c.folder]
    do(*git, "init", "-q")
    do(*git, "add", TEXT)
    return do(*git, "cat-file", "-p", ":" + TEXT)


@program("restic", "restic")
def restic(c):
    env = dict(os.environ, RESTIC_PASSWORD="x", RESTIC_REPOSITORY=c.copy)
    do("restic", "-q", "init", env=env)
    do("restic", "-q", "backup", c.path, env=env)
    return do("restic", "-q", "dump", "latest", c.path, env=env)


@program("borg", "borg")
def borg(c):
    env = dict(os.environ, BORG_BASE_DIR=c.out,
               BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK="yes")
    do("borg", "init", "-e", "none", c.copy, env=env)
    do("borg", "create", c.copy + "::a", TEXT, env=env, cwd=c.folder)
    return do("borg", "extract", "--stdout", c.copy + "::a", env=env, cwd=c.out)


@program("http.server")
def http_server(c):
    import http.client
    server = start(sys.executable, "-u", "-m", "http.server", "0", "--bind",
                   "127.0.0.1", cwd=c.folder)
    port = int(re.search(rb"port (\d+)", server.stdout.readline())[1])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", "/" + TEXT)
    try:
        got = connection.getresponse().read()
    except http.client.HTTPException as e:
        raise Loud(repr(e)) from None
    finally:
        server.kill()
        server.wait()
    return got


# --- what must hold ---------------------------------------------------------

def fetch(mode, name):
    """(got, want, complaint or None) of one program in a fresh mount."""
    needs, function, _ = programs[name]
    need(*needs)
    with Mount("size=" + mode, engine=ENGINE) as m:
        m.add(NAME)
        truth = m.read_directly(NAME)
        check(len(truth) > 10000, "a text of %d bytes" % len(truth))
        try:
            result = function(Case(m, truth))
        except Loud as e:
            return None, truth, str(e)
        return (*result, None) if isinstance(result, tuple) else (result, truth, None)


def with_bound(name):
    got, want, complaint = fetch("bound", name)
    if complaint:
        note("%s fails loudly: %s" % (name, complaint))
    elif got != want and got[:len(want)] == want and not got[len(want):].strip(b"\0"):
        note("%s: padded with %d NUL" % (name, len(got) - len(want)))
    else:
        equal(got, want, "what arrived")


def with_wait(name):
    got, want, complaint = fetch("wait", name)
    check(not complaint, complaint)
    equal(got, want, "what arrived")


def with_zero(name):
    got, want, complaint = fetch("zero", name)
    if programs[name][2]:
        check(not complaint, complaint)
        equal(got, want, "what arrived")
    elif got != want:
        note("%s trusts the size of zero" % name)


for mode in (with_bound, with_wait, with_zero):
    tests([(name, name) for name in programs])(mode)


@test
def after_open_fstat_is_exact():
    for mode in ("bound", "zero", "wait"):
        with Mount("size=" + mode, engine=ENGINE) as m:
            m.add(NAME)
            truth = m.read_directly(NAME)
            before = os.stat(m.text(NAME))
            equal(before.st_size, {"bound": 65536, "zero": 0, "wait": len(truth)}[mode],
                  "stat before with size=" + mode)
            if mode != "zero":
                equal(before.st_blocks, -(-before.st_size // 512), "st_blocks")
            fd = os.open(m.text(NAME), os.O_RDONLY)
            equal(os.fstat(fd).st_size, len(truth), "fstat after open")
            equal(os.stat(m.text(NAME)).st_size, len(truth), "stat after open")
            equal(os.lseek(fd, 0, os.SEEK_END), len(truth), "SEEK_END")
            os.close(fd)


@test
def a_shared_mapping_works():
    # It would not on a file opened with direct_io.
    import mmap
    with Mount(engine=ENGINE) as m:
        m.add(NAME)
        with open(m.text(NAME), "rb") as f:
            with mmap.mmap(f.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as view:
                equal(view[:], m.read_directly(NAME), "mapped text")


main()
