"""The harness of the mount tests: TAP, private mounts, nothing left behind.

    #!/usr/bin/env python3
    import os, sys
    sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
    from harness import *

    @test(limit=30)
    def cat_gets_the_whole_text():
        with Mount("size=wait", engine="null:200ms") as m:
            m.add("a.png", seed=1)
            equal(run("cat", m.text("a.png")), m.read_directly("a.png"))

    main()

Each test runs in a process of its own, in a temporary folder of its own, under
a time limit. Afterwards everything it mounted is unmounted and everything it
started is killed, whatever happened. `test_x.py WORD` runs the tests with WORD
in their names, `-l` lists them, and OCRFS_TEST_KEEP=1 keeps the folders.

A test that lacks a program calls need() and is reported as skipped.
"""
import contextlib
import ctypes
import errno
import fcntl
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import traceback

from picture import blank, picture, png

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
BUILD = os.path.abspath(os.environ.get("BUILD") or os.path.join(ROOT, "build/opt"))
OCRFS = os.environ.get("OCRFS") or os.path.join(BUILD, "ocrfs")
DATA = os.path.join(ROOT, "tests", "data")
TOOLS = os.path.join(BUILD, "tests", "tools")

# What a user sees as a fault. Lines of the log with these words fail a test
# that has not allowed them.
SUSPICIOUS = re.compile(r"\b(error|warning|fault|assert\w*|sanitizer|runtime error"
                        r"|abort\w*|panic)\b", re.I)


class Skip(Exception):
    """Raised by need(): the test cannot run here."""


class Failed(AssertionError):
    """Raised by the checks."""


# --- checks -----------------------------------------------------------------

def check(condition, message="check failed"):
    if not condition:
        raise Failed(message)


def equal(got, want, what="value"):
    if got != want:
        raise Failed("%s: got %s, want %s" % (what, _short(got), _short(want)))


def _short(value):
    text = repr(value)
    return text if len(text) < 300 else text[:200] + "... (%d)" % len(value)


def fails(number, function, *args, **kwargs):
    """The call must raise OSError with this errno; returns the exception."""
    name = errno.errorcode[number]
    try:
        result = function(*args, **kwargs)
    except OSError as e:
        if e.errno != number:
            raise Failed("%s: got %s, want %s" % (
                getattr(function, "__name__", function),
                errno.errorcode.get(e.errno, e.errno), name)) from None
        return e
    raise Failed("%s%r: got %s, want %s" % (
        getattr(function, "__name__", function), args, _short(result), name))


# Seconds after which something that never takes long counts as never: nothing
# may depend on how busy the machine is.
PATIENCE = 30


def wait_for(condition, what, limit=PATIENCE):
    """Until condition() is true; returns its value."""
    end = time.monotonic() + limit
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise Failed("%s: not within %g s" % (what, limit))
        time.sleep(0.02)


def need(*programs):
    """Skips the test unless every program (of the PATH, or a path) is there."""
    for name in programs:
        if not shutil.which(name):
            raise Skip("%s is not installed" % name)


def skip(reason):
    raise Skip(reason)


def note(message):
    """A line for the reader of the output; never decides anything."""
    print("# " + str(message), file=sys.stderr, flush=True)


# --- programs ---------------------------------------------------------------

def run(*argv, status=0, stdin=None, env=None, cwd=None, limit=60, stderr=False,
        **kwargs):
    """Runs a program and returns its standard output (bytes). Its exit status
    must be `status` (None: any). stderr=True returns (status, out, err)."""
    argv = [a if isinstance(a, bytes) else str(a) for a in argv]
    p = subprocess.run(argv, stdin=subprocess.DEVNULL if stdin is None else None,
                       input=stdin, stdout=subprocess.PIPE,
                       stderr=subprocess.PIPE, env=env, cwd=cwd, timeout=limit,
                       check=False, **kwargs)
    if status is not None and p.returncode != status:
        raise Failed("%s: exit %d, want %d: %s" % (
            " ".join(map(str, argv[:4])), p.returncode, status,
            p.stderr.decode(errors="replace").strip()[-500:]))
    return (p.returncode, p.stdout, p.stderr) if stderr else p.stdout


def start(*argv, **kwargs):
    """Starts a program in the background with its output in pipes."""
    kwargs.setdefault("stdin", subprocess.DEVNULL)
    kwargs.setdefault("stdout", subprocess.PIPE)
    kwargs.setdefault("stderr", subprocess.PIPE)
    return subprocess.Popen([a if isinstance(a, bytes) else str(a) for a in argv],
                            **kwargs)


def state_of(pid):
    """The letter of the process's state, '' if it is gone."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as f:
            return f.read().rsplit(b")", 1)[1].split()[0].decode()
    except OSError:
        return ""


def parked(pid):
    """True while the process waits in open() (or stat) of a file system."""
    try:
        with open("/proc/%d/wchan" % pid) as f:
            where = f.read()
            return "fuse" in where or "request_wait" in where
    except OSError:
        return False


def read_file(path):
    with open(path, "rb") as f:
        return f.read()


def write_file(path, data):
    with open(path, "wb") as f:
        f.write(data)


# --- mounts -----------------------------------------------------------------

def _unescape(field):
    return re.sub(rb"\\([0-7]{3})", lambda m: bytes([int(m[1], 8)]), field)


def mounts():
    """[(mount point, type, options, source)] of this mount namespace, bytes."""
    found = []
    with open("/proc/self/mountinfo", "rb") as f:
        for line in f:
            left, right = line.rstrip(b"\n").split(b" - ", 1)
            left, right = left.split(b" "), right.split(b" ")
            found.append((_unescape(left[4]), right[0], left[5], _unescape(right[1])))
    return found


def is_mounted(path):
    path = os.fsencode(path)
    return any(m[0] == path and m[1].startswith(b"fuse") for m in mounts())


def fuse_missing():
    """Why nothing can be mounted here, or None."""
    if not os.path.exists("/dev/fuse"):
        return "/dev/fuse is missing"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse may not be opened"
    if not shutil.which("fusermount3"):
        return "fusermount3 is not installed (package fuse3)"
    return None


class Mount:
    """`ocrfs SOURCE MOUNTPOINT -f -o ...` in a folder of its own.

    options      "size=wait", "verify", ...: what follows -o
    engine       recogniser; None leaves the option out
    allow        regular expressions: suspicious log lines that are expected
    daemon       without -f: ocrfs goes to the background by itself
    source, mountpoint, cache, runtime   folders to use instead of private ones
    program      argv in front, e.g. to run as another user
    env          added to the environment
    ocrfs        another ocrfs than that of the build

    As a context manager it mounts, and at the end unmounts, demands exit
    status 0, no mount left, and a clean log.
    """
    count = 0

    def __init__(self, *options, engine="null", allow=(), daemon=False,
                 source=None, mountpoint=None, cache=None, runtime=None,
                 program=(), env=None, args=(), ocrfs=OCRFS):
        Mount.count += 1
        self.base = os.path.join(os.environ["OCRFS_TEST_DIR"], "m%d" % Mount.count)
        self.source = source or os.path.join(self.base, "source")
        self.path = mountpoint or os.path.join(self.base, "mnt")
        self.cache = cache or os.path.join(self.base, "cache")
        self.runtime = runtime or os.path.join(self.base, "run")
        self.options = list(options)
        if engine is not None:
            self.options.append("engine=" + engine)
        self.engine, self.allow, self.daemon = engine, list(allow), daemon
        self.program, self.args, self.ocrfs = list(program), list(args), ocrfs
        self.env = dict(os.environ, **(env or {}))
        self.process = None
        self.log_path = os.path.join(self.base, "log")
        for folder in (self.base, self.source, self.path):
            os.makedirs(folder, exist_ok=True)
        os.makedirs(self.cache, 0o700, exist_ok=True)
        os.makedirs(self.runtime, 0o700, exist_ok=True)

    # - life -

    def argv(self):
        own = ["cache=" + self.cache, "runtime=" + self.runtime]
        return (self.program + [self.ocrfs, self.source, self.path, "-o",
                                ",".join(self.options + own)] + self.args +
                ([] if self.daemon else ["-f"]))

    def start(self, limit=PATIENCE):
        """Mounts and waits until it is there; returns self."""
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                self.argv(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=self.env, cwd="/")
        if self.daemon:
            equal(self.process.wait(limit), 0, "exit of the starting ocrfs")
        wait_for(lambda: is_mounted(self.path) or self._ended(), "mount", limit)
        # In mountinfo it may not have answered INIT yet: the first stat waits.
        os.stat(self.path)
        return self

    def _ended(self):
        if self.daemon or self.process.poll() is None:
            return False
        raise Failed("ocrfs ended with status %d: %s" % (
            self.process.returncode, self.log().strip()[-1000:]))

    def pids(self):
        """Process ids of ocrfs for this mount."""
        if self.process and not self.daemon and not self.program:
            return [self.process.pid]
        return [p for p in descendants(int(os.environ["OCRFS_TEST_RUNNER"]))
                if _is_ocrfs_for(p, self.path)]

    @property
    def pid(self):
        return self.pids()[0]

    def engine_pids(self):
        return [p for p in descendants(int(os.environ["OCRFS_TEST_RUNNER"]))
                if _program_of(p) == "ocrfs-engine"]

    def unmount(self, limit=PATIENCE):
        """fusermount3 -u; then exit 0 and no mount."""
        run("fusermount3", "-u", self.path)
        self.finish(limit)

    def stop(self, number=signal.SIGTERM, limit=PATIENCE):
        for pid in self.pids():
            os.kill(pid, number)
        self.finish(limit)

    def finish(self, limit=PATIENCE, status=0):
        """Waits for the end that somebody else asked for."""
        if self.daemon or self.program:
            wait_for(lambda: not self.pids(), "end of ocrfs", limit)
        if not self.daemon:
            try:
                equal(self.process.wait(limit), status, "exit of ocrfs")
            except subprocess.TimeoutExpired:
                raise Failed("ocrfs did not end within %g s" % limit) from None
        check(not is_mounted(self.path), "still in mountinfo: %s" % self.path)
        self.process = None

    def kill(self):
        """kill -9 and clear away the dead mount point."""
        for pid in self.pids():
            os.kill(pid, signal.SIGKILL)
        if not self.daemon:
            self.process.wait()
        run("fusermount3", "-u", "-z", self.path, status=None)
        self.process = None

    def __enter__(self):
        return self.start()

    def __exit__(self, kind, value, trace):
        if kind is not None:
            if kind is not Skip:
                note("log of ocrfs:\n" + self.log()[-4000:])
            return
        if self.process is not None:
            # A program that has just ended may still hold a file.
            wait_for(lambda: run("fusermount3", "-u", self.path, status=None,
                                 stderr=True)[0] == 0, "fusermount3 -u")
            self.finish()
        self.check_log()

    # - what it says -

    def log(self):
        with contextlib.suppress(OSError):
            return read_file(self.log_path).decode(errors="replace")
        return ""

    def check_log(self):
        for line in self.log().splitlines():
            if SUSPICIOUS.search(line) and not any(re.search(a, line) for a in self.allow):
                raise Failed("line in the log: " + line)
            check(line.isprintable() or "\t" in line,
                  "line in the log is not printable: %r" % line)

    def status(self):
        """The parsed MOUNTPOINT/.ocrfs/status.json."""
        return json.loads(read_file(os.path.join(self.path, ".ocrfs/status.json")))

    # - files -

    def add(self, name, seed=None, data=None):
        """Writes an image (or data) to SOURCE; returns its path there. It is
        made old, so that nobody waits for a writer to finish."""
        path = os.path.join(os.fsencode(self.source), os.fsencode(name))
        write_file(path, picture(name if seed is None else seed)
                   if data is None else data)
        old = time.time_ns() - 100 * 10**9
        os.utime(path, ns=(old, old))
        return path if isinstance(name, bytes) else os.fsdecode(path)

    def at(self, name):
        """Path of an original in the mount."""
        if isinstance(name, bytes):
            return os.path.join(os.fsencode(self.path), name)
        return os.path.join(self.path, name)

    def text(self, name, suffix=".md"):
        """Path of the text of an image in the mount."""
        return self.at(name) + (suffix.encode() if isinstance(name, bytes) else suffix)

    def read_directly(self, name):
        """What the recogniser makes of the image, without any mount."""
        folder = os.path.join(self.base, "direct")
        os.makedirs(folder, 0o700, exist_ok=True)
        path = os.path.join(os.fsencode(self.source), os.fsencode(name))
        return run(OCRFS, "read", "--engine", self.engine, "--cache", "memory",
                   "--runtime", folder, path, env=self.env)


# --- processes --------------------------------------------------------------

def _program_of(pid):
    with contextlib.suppress(OSError):
        return os.path.basename(os.readlink("/proc/%d/exe" % pid)).split(" ")[0]
    return ""


def _is_ocrfs_for(pid, path):
    with contextlib.suppress(OSError):
        argv = read_file("/proc/%d/cmdline" % pid).split(b"\0")
        return _program_of(pid) == "ocrfs" and os.fsencode(path) in argv
    return False


def descendants(root):
    """Process ids of all children, and theirs."""
    parent = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                fields = read_file("/proc/%s/stat" % name).rsplit(b")", 1)[1].split()
                if fields[0] != b"Z":
                    parent[int(name)] = int(fields[1])
    found, grew = {root}, True
    while grew:
        more = {p for p, up in parent.items() if up in found and p not in found}
        grew = bool(more)
        found |= more
    return sorted(found - {root})


def clear(folder):
    """Unmounts all below `folder` and kills whatever we still have running."""
    inside = os.fsencode(folder) + b"/"
    for path in [m[0] for m in mounts() if m[0].startswith(inside)][::-1]:
        for argv in (["fusermount3", "-uz", path], ["umount", "-l", path]):
            if subprocess.run(argv, stderr=subprocess.DEVNULL, check=False).returncode == 0:
                break
    for _ in range(200):
        pids = descendants(os.getpid())
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not pids:
            break
        time.sleep(0.02)
    if not os.environ.get("OCRFS_TEST_KEEP"):
        # Folders without permissions are part of some tests.
        for here, folders, _ in os.walk(os.fsencode(folder)):
            for name in folders:
                path = os.path.join(here, name)
                if not os.path.islink(path):
                    with contextlib.suppress(OSError):
                        os.chmod(path, 0o700)
        # Not shutil.rmtree: nothing may be deleted through a mount that stayed.
        subprocess.run(["rm", "-rf", "--one-file-system", folder], check=False,
                       stderr=subprocess.DEVNULL)


# --- the runner -------------------------------------------------------------

_tests = []


def test(function=None, limit=60, mounts_something=True, alone=False):
    """Registers a test. `limit` seconds; mounts_something=False for tests that
    run without /dev/fuse; alone: beside no other mount test."""
    if function is None:
        return lambda f: test(f, limit, mounts_something, alone)
    _tests.append((function, limit, mounts_something, alone))
    return function


def tests(cases, **options):
    """One test for each (name, argument...) of cases: "function: name"."""
    def register(function):
        for name, *args in cases:
            def one(args=args):
                function(*args)
            one.__name__ = "%s: %s" % (function.__name__, name)
            test(one, **options)
        return function
    return register


def _outcome(function):
    """Runs one test in this process: ("ok" | "skip" | "fail", sentence)."""
    try:
        function()
        return "ok", ""
    except Skip as e:
        return "skip", str(e)
    except Failed as e:
        frame = traceback.extract_tb(e.__traceback__)
        at = [f for f in frame if f.filename != __file__][-1]
        return "fail", "%s\n%s:%d" % (e, os.path.basename(at.filename), at.lineno)
    except BaseException:  # a test may raise anything; all of it is a failure
        return "fail", traceback.format_exc()


def _run_one(function, limit):
    """The test in a child; ("ok" | "skip" | "fail", sentence)."""
    folder = tempfile.mkdtemp(prefix="ocrfs-test.")
    os.chmod(folder, 0o755)
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(out)
        home = os.path.join(folder, "home")
        os.mkdir(home)
        os.environ.update(OCRFS_TEST_DIR=folder, HOME=home, TMPDIR=folder,
                          OCRFS_TEST_RUNNER=str(os.getppid()), LC_ALL="C.UTF-8",
                          XDG_CACHE_HOME=os.path.join(home, ".cache"),
                          XDG_CONFIG_HOME=os.path.join(home, ".config"),
                          XDG_RUNTIME_DIR=home)
        tempfile.tempdir = None
        result = _outcome(function)
        os.write(into, "\0".join(result).encode(errors="replace")[:60000])
        os._exit(0)
    os.close(into)
    result = b""
    end = time.monotonic() + limit
    while state_of(pid) not in ("", "Z") and time.monotonic() < end:
        time.sleep(0.01)
    if state_of(pid) in ("", "Z"):
        result = os.read(out, 65536)
    os.close(out)
    clear(folder)
    if not result:
        return "fail", "no result within %g s" % limit
    return result.decode(errors="replace").split("\0", 1)


def main(alone=False):
    """Runs the tests of this file and prints TAP; exits with 1 if one failed.
    alone=True stands for all of them."""
    words = [a for a in sys.argv[1:] if not a.startswith("-")]
    for function, *_ in _tests:
        function.__name__ = function.__name__.replace("_", " ")
    chosen = [t for t in _tests if all(w in t[0].__name__ for w in words)]
    if "-l" in sys.argv[1:]:
        print("\n".join(t[0].__name__ for t in _tests))
        sys.exit(0)
    if not chosen:
        print("Bail out! no test has %s in its name" % " ".join(words))
        sys.exit(1)
    # Daemons that lost their parents become our children, so that none can
    # escape clear().
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    lock = os.open(BUILD, os.O_RDONLY)
    print("1..%d" % len(chosen), flush=True)
    failed, no_fuse = 0, fuse_missing()
    for number, (function, limit, mounts_something, by_itself) in enumerate(chosen, 1):
        if mounts_something and no_fuse:
            outcome, sentence = "skip", no_fuse
        else:
            fcntl.flock(lock, fcntl.LOCK_EX if alone or by_itself else fcntl.LOCK_SH)
            outcome, sentence = _run_one(function, limit)
            fcntl.flock(lock, fcntl.LOCK_UN)
        name = function.__name__.replace("#", "\\#")
        bad = outcome == "fail"
        failed += bad
        print("%s %d - %s%s" % ("not ok" if bad else "ok", number, name,
                                " # SKIP " + sentence if outcome == "skip" else ""))
        sys.stdout.flush()
        if bad:  # to standard error, where prove lets it through
            note("%s: %s:" % (os.path.basename(sys.argv[0]), name))
            note("  " + "\n#   ".join(sentence.splitlines()))
    sys.exit(1 if failed else 0)
