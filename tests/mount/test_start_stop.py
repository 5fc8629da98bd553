#!/usr/bin/env python3
"""Starting says what went wrong and with which status; stopping is quick and
leaves nothing, whoever asks for it and whoever still waits."""
import os
import sys
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from harness import *

SLOW = "null:30s"


# --- starting ---------------------------------------------------------------

def refused(status, *words, argv, env=None):
    """ocrfs must end with this status and a message with all the words."""
    got, out, err = run(OCRFS, *argv, status=None, stderr=True, env=env)
    text = err.decode(errors="replace")
    equal(got, status, "exit status (%s)" % text.strip())
    equal(out, b"", "standard output")
    for line in text.splitlines():
        check(line.startswith(("ocrfs: ", "fusermount3: ", "usage:"))
              or line.startswith(" "), "not a message of ocrfs: " + line)
    for word in words:
        check(word in text, "%r is not in the message %r" % (word, text))
    return text


def folders():
    """(source, mountpoint, options) that would do."""
    base = os.environ["OCRFS_TEST_DIR"]
    for name in ("source", "mnt", "run", "cache"):
        os.makedirs(os.path.join(base, name), 0o700, exist_ok=True)
    return (os.path.join(base, "source"), os.path.join(base, "mnt"),
            "engine=null,cache=%s/cache,runtime=%s/run" % (base, base))


@test
def the_daemon_goes_to_the_background_when_the_mount_is_there():
    source, path, options = folders()
    write_file(os.path.join(source, "a.png"), picture(1))
    run(OCRFS, source, path, "-o", options)
    check(is_mounted(path), "not mounted when ocrfs returned")
    equal(sorted(os.listdir(path)), ["a.png", "a.png.md"], "listing")
    check(len(read_file(os.path.join(path, "a.png.md"))) > 0, "an empty text")
    run("fusermount3", "-u", path)


@test
def the_daemon_keeps_nothing_of_the_shell():
    # A pipe that the daemon keeps open would hang `ocrfs ... | cat`.
    source, path, options = folders()
    p = start("sh", "-c", "'%s' '%s' '%s' -o '%s'; echo done" % (OCRFS, source, path, options))
    out, err = p.communicate(timeout=20)
    equal(out, b"done\n", "output")
    with Mount(daemon=True) as m:
        equal(os.readlink("/proc/%d/cwd" % m.pid), "/", "working directory")
        for fd in ("0", "1", "2"):
            equal(os.readlink("/proc/%d/fd/%s" % (m.pid, fd)), "/dev/null", "descriptor " + fd)


@test
def relative_paths_work():
    source, path, options = folders()
    run(OCRFS, "source", "mnt", "-o", options, cwd=os.path.dirname(source))
    check(is_mounted(path), "not mounted")
    run("fusermount3", "-u", path)


@test
def a_wrong_option_is_named():
    source, path, options = folders()
    refused(1, "colour", argv=[source, path, "-o", options + ",colour=red"])
    refused(1, "size", argv=[source, path, "-o", options + ",size=huge"])
    refused(1, "cache_size", argv=[source, path, "-o", options + ",cache_size=many"])
    refused(1, "-x", argv=[source, path, "-x"])
    check(not is_mounted(path), "mounted all the same")


@test
def an_unknown_key_of_a_configuration_file_is_named_with_file_and_line():
    source, path, options = folders()
    config = os.path.join(os.environ["XDG_CONFIG_HOME"], "ocrfs")
    os.makedirs(config)
    write_file(os.path.join(config, "config"), b"# mine\nlang = eng\ncolour = red\n")
    refused(1, "colour", os.path.join(config, "config"), "3",
            argv=[source, path, "-o", options])


@test
def no_mount_point():
    source, path, options = folders()
    refused(2, argv=[source])
    refused(2, "nowhere", argv=[source, path + "/nowhere", "-o", options])
    write_file(path + "file", b"")
    refused(2, path + "file", argv=[source, path + "file", "-o", options])


@test
def a_missing_source():
    source, path, options = folders()
    refused(3, "nowhere", argv=[source + "/nowhere", path, "-o", options])
    write_file(source + "/file", b"")
    refused(3, source + "/file", argv=[source + "/file", path, "-o", options])


@test
def a_mount_that_fails_says_so():
    source, path, options = folders()
    # fusermount3 is asked by users only, and root mounts by itself: so a mount
    # option that the kernel refuses.
    refused(4, argv=[source, path, "-o", options + ",context=no_such_label"])
    check(not is_mounted(path), "mounted all the same")


@test
def the_same_source_mounted_there_already():
    with Mount() as m:
        m.add("a.png")
        refused(4, "already", m.path, argv=m.argv()[1:])
        equal(sorted(os.listdir(m.path)), ["a.png", "a.png.md"], "the first mount")


@test
def a_dead_mount_point():
    m = Mount()
    m.start()
    os.kill(m.pid, signal.SIGKILL)
    m.process.wait()
    fails(errno.ENOTCONN, os.listdir, m.path)
    refused(4, "fusermount3 -u", m.path, argv=m.argv()[1:])
    run("fusermount3", "-u", m.path)
    m.process = None
    with m:
        equal(os.listdir(m.path), [], "a fresh mount")


@test
def a_missing_engine_leaves_the_known_texts():
    # A copy of the program alone finds no engine beside itself.
    alone = os.path.join(os.environ["OCRFS_TEST_DIR"], "bin")
    os.mkdir(alone)
    run("cp", OCRFS, alone)
    with Mount() as first:
        first.add("known.png")
        first.add("unknown.png")
        known = read_file(first.text("known.png"))
    with Mount(source=first.source, cache=first.cache, allow=["engine", "unknown.png"]) as m:
        # With an engine, to see that the cache is the same one.
        equal(read_file(m.text("known.png")), known, "known text")
    argv = [os.path.join(alone, "ocrfs"), first.source, first.path, "-f", "-o",
            "engine=null,cache=%s,runtime=%s/none" % (first.cache, first.base)]
    p = start(*argv)
    wait_for(lambda: is_mounted(first.path) or p.poll() is not None, "mount")
    equal(read_file(first.text("known.png")), known, "known text without an engine")
    fails(errno.EIO, open, first.text("unknown.png"))
    check(read_file(first.at("unknown.png")).startswith(b"\x89PNG"), "the original")
    run("fusermount3", "-u", first.path)
    err = p.communicate(timeout=10)[1].decode()
    equal(p.returncode, 0, "exit status")
    check("ocrfs-engine" in err, "the engine is not named: " + err)
    got, _, err = run(*argv[:-1], argv[-1] + ",engine_required", status=None, stderr=True)
    equal(got, 3, "exit status with engine_required: " + err.decode())
    check(b"ocrfs-engine" in err, "the engine is not named: " + err.decode())
    check(not is_mounted(first.path), "mounted with engine_required")


@test
def help_and_version():
    out = run(OCRFS, "--help")
    for word in (b"SOURCE", b"MOUNTPOINT", b"read", b"status"):
        check(word in out, "%r is not in --help" % word)
    equal(run(OCRFS, "-h"), out, "-h")
    check(b"size=" in run(OCRFS, "help", "mount"), "options")
    check(run(OCRFS, "--version").startswith(b"ocrfs "), "--version")
    for command in ("read", "status", "cache", "doctor"):
        check(b"ocrfs " + command.encode() in run(OCRFS, command, "--help"), command)


@test
def mount_over_the_source_itself():
    base = os.environ["OCRFS_TEST_DIR"]
    folder = os.path.join(base, "scans")
    os.makedirs(folder + "/sub")
    m = Mount(source=folder, mountpoint=folder)
    m.add("a.png")
    m.add("sub/b.png")
    with m:
        wait_for(lambda: is_mounted(folder), "mount")
        equal(sorted(os.listdir(folder)), ["a.png", "a.png.md", "sub"], "listing")
        check(len(read_file(folder + "/sub/b.png.md")) > 0, "an empty text")
        check(read_file(folder + "/a.png").startswith(b"\x89PNG"), "the original")
    equal(sorted(os.listdir(folder)), ["a.png", "sub"], "listing afterwards")


@test
def mount_point_inside_the_source():
    base = os.environ["OCRFS_TEST_DIR"]
    folder = os.path.join(base, "scans")
    os.makedirs(folder + "/texts")
    m = Mount(source=folder, mountpoint=folder + "/texts")
    m.add("a.png")
    with m:
        check(len(read_file(m.text("a.png"))) > 0, "an empty text")
        # Through the mount to the mount: an end must be there somewhere.
        run("timeout", "20", "find", m.path, status=None)
        run("timeout", "20", "ls", "-lR", m.path, status=None)


@test
def mount_t_fuse_ocrfs():
    if os.geteuid() != 0:
        skip("only root may use mount -t")
    need("mount.fuse3")
    source, path, options = folders()
    write_file(os.path.join(source, "a.png"), picture(1))
    # mount looks for the program on a PATH of its own: in a private mount
    # namespace /usr/local/bin can have it without touching the machine.
    script = """set -e
mount --make-rprivate /
mount -t tmpfs none /usr/local/bin
ln -s '%(ocrfs)s' /usr/local/bin/ocrfs
mount -t fuse.ocrfs '%(source)s' '%(path)s' -o '%(options)s,noatime,nofail,x-test=1'
grep ' %(path)s ' /proc/self/mountinfo
cat '%(path)s/a.png.md'
umount '%(path)s'
""" % dict(ocrfs=OCRFS, source=source, path=path, options=options)
    out = run("unshare", "-m", "sh", "-c", script).decode()
    check("fuse.ocrfs" in out and "nosuid,nodev" in out, out)
    check(len(out.splitlines()) > 1, "no text")


@test
def a_source_with_a_comma_and_a_backslash():
    base = os.environ["OCRFS_TEST_DIR"]
    m = Mount(source=os.path.join(base, "a,b\\c d"), mountpoint=os.path.join(base, "m,n o"))
    m.add("a.png")
    with m:
        equal(sorted(os.listdir(m.path)), ["a.png", "a.png.md"], "listing")
        equal([x[3] for x in mounts() if x[0] == os.fsencode(m.path)],
              [os.fsencode(m.source)], "source in mountinfo")


@test
def systemd_is_told():
    import socket
    base = os.environ["OCRFS_TEST_DIR"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.bind(base + "/notify")
        s.settimeout(15)
        with Mount(env={"NOTIFY_SOCKET": base + "/notify"}) as m:
            said = s.recv(4096)
            check(b"READY=1" in said.split(b"\n"), repr(said))
            check(is_mounted(m.path), "READY before the mount")
            m.stop()
        s.settimeout(2)
        while b"STOPPING=1" not in said.split(b"\n"):
            said = s.recv(4096)


# --- stopping ---------------------------------------------------------------

def waiting_readers(m, count=3):
    """Programs that wait for a text which never comes."""
    readers = []
    for i in range(count):
        m.add("wait%d.png" % i)
        readers.append(start("cat", m.text("wait%d.png" % i)))
    # ocrfs itself says so: a program whose lookup is still on its way to ocrfs
    # waits in the kernel just as well.
    wait_for(lambda: m.status()["parked"] == count, "readers to wait")
    return readers


def told(readers, message=b"No such device"):
    for p in readers:
        out, err = p.communicate(timeout=PATIENCE)
        equal((p.returncode, out), (1, b""), "exit and output of a reader")
        check(message in err, "a reader was told: " + err.decode())


@test
def fusermount3_u_with_waiting_readers_changes_nothing():
    with Mount(engine="null:2s") as m:
        readers = waiting_readers(m, 2)
        status, _, err = run("fusermount3", "-u", m.path, status=None, stderr=True)
        check(status != 0 and b"busy" in err, "fusermount3: %d %r" % (status, err))
        check(is_mounted(m.path), "unmounted")
        for i, p in enumerate(readers):
            out, err = p.communicate(timeout=15)
            equal((p.returncode, err), (0, b""), "a reader")
            equal(out, m.read_directly("wait%d.png" % i), "its text")


def stop_with_waiting_readers(stop):
    m = Mount(engine=SLOW)
    with m:
        readers = waiting_readers(m)
        begin = time.monotonic()
        stop(m)
        m.finish()
        note("gone after %.2f s" % (time.monotonic() - begin))
        told(readers)


tests([
    ("fusermount3 -uz", lambda m: run("fusermount3", "-u", "-z", m.path)),
    ("SIGTERM", lambda m: os.kill(m.pid, signal.SIGTERM)),
    ("SIGINT", lambda m: os.kill(m.pid, signal.SIGINT)),
])(stop_with_waiting_readers)


@test
def stop_of_a_mount_in_the_background():
    with Mount(engine=SLOW, daemon=True) as m:
        readers = waiting_readers(m)
        m.stop()
        told(readers)


@test
def stop_with_open_files_and_a_working_directory_inside():
    m = Mount()
    with m:
        m.add("a.png")
        with open(m.text("a.png"), "rb") as f:
            holder = start("sleep", "100", cwd=m.path)
            m.stop()
            fails(errno.ENOTCONN, f.read)
        holder.kill()
        holder.wait()


@test
def stop_while_many_programs_start_and_end():
    m = Mount(engine="null:10ms")
    with m:
        for i in range(40):
            m.add("%d.png" % i)
        loop = "while :; do for i in '%s'/*.md; do cat \"$i\" || exit; done; done" % m.path
        readers = [start("sh", "-c", loop, stdout=subprocess.DEVNULL) for _ in range(6)]
        time.sleep(0.5)
        m.stop()
        for p in readers:
            p.communicate(timeout=PATIENCE)


@test
def an_unmount_from_outside_ends_ocrfs():
    with Mount() as m:
        m.add("a.png")
        read_file(m.text("a.png"))
        m.unmount()


@test
def kill_9_leaves_a_dead_mount_that_can_be_cleared():
    m = Mount(engine=SLOW)
    m.start()
    readers = waiting_readers(m, 1)
    open_file = os.open(m.at("wait0.png"), os.O_RDONLY)
    os.kill(m.pid, signal.SIGKILL)
    m.process.wait()
    m.process = None
    told(readers, b"Software caused connection abort")
    try:  # with passthrough the kernel goes on by itself
        equal(os.read(open_file, 1), b"\x89", "an open original")
    except OSError as e:
        equal(e.errno, errno.ENOTCONN, "reading an open original")
    fails(errno.ENOTCONN, os.listdir, m.path)
    os.close(open_file)
    run("fusermount3", "-u", m.path)
    equal(os.listdir(m.path), [], "the empty mount point")


# --- signals to readers -----------------------------------------------------

def a_signal_ends_the_reader(number):
    with Mount(engine=SLOW) as m:
        p = waiting_readers(m, 1)[0]
        os.kill(p.pid, number)
        wait_for(lambda: p.poll() is not None, "end of the reader")
        equal(p.returncode, -number, "how it ended")
        m.stop()


tests([(n.name, n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL,
                             signal.SIGQUIT, signal.SIGSEGV)])(a_signal_ends_the_reader)


@test
def harmless_signals_disturb_no_reader():
    reader = """
import signal, sys
for n in (signal.SIGALRM, signal.SIGWINCH, signal.SIGURG, signal.SIGUSR1):
    signal.signal(n, lambda *a: None)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
import os
fd = os.open(sys.argv[1], os.O_RDONLY)   # once: EINTR would be retried by open()
sys.stdout.buffer.write(os.read(fd, 1 << 20))
"""
    with Mount(engine="null:2s") as m:
        m.add("a.png")
        p = start(sys.executable, "-c", reader, m.text("a.png"))
        wait_for(lambda: m.status()["parked"] == 1, "a waiting reader")
        for number in (signal.SIGALRM, signal.SIGWINCH, signal.SIGURG, signal.SIGUSR1,
                       signal.SIGHUP, signal.SIGSTOP, signal.SIGCONT):
            os.kill(p.pid, number)
            time.sleep(0.05)
        out, err = p.communicate(timeout=15)
        equal((p.returncode, err), (0, b""), "the reader")
        equal(out, m.read_directly("a.png"), "its text")
        equal(m.status()["jobs"]["done"] if "jobs" in m.status() else 1, 1, "jobs")


@test
def a_caught_signal_in_c_does_not_return_eintr():
    # Python repeats an interrupted open() by itself; this program does not.
    with Mount(engine="null:1s") as m:
        m.add("a.png")
        out = run(os.path.join(TOOLS, "alarmopen"), m.text("a.png"))
        equal(out, m.read_directly("a.png"), "its text")


@test
def with_intr_a_caught_signal_returns_eintr():
    with Mount("intr", engine="null:1s") as m:
        m.add("a.png")
        status, _, err = run(os.path.join(TOOLS, "alarmopen"), m.text("a.png"),
                             status=None, stderr=True)
        equal(status, 1, "exit status")
        check(b"Interrupted system call" in err, err.decode())


@test
def a_mount_that_was_moved_is_taken_away_by_its_end():
    # The mount point itself cannot be renamed, but a folder above it can.
    for end in (signal.SIGTERM, None):
        base = os.path.join(os.environ["OCRFS_TEST_DIR"], "above%d" % bool(end))
        os.mkdir(base)
        m = Mount(mountpoint=base + "/mnt")
        m.start()
        m.add("a.png")
        os.rename(base, base + "-moved")
        check(len(read_file(base + "-moved/mnt/a.png.md")) > 0, "no text after the move")
        # What takes its place is left alone.
        os.makedirs(base + "/mnt")
        run("mount", "-t", "tmpfs", "none", base + "/mnt", status=None)
        other = [x for x in mounts() if x[0] == os.fsencode(base + "/mnt")]
        if end:
            os.kill(m.pid, end)
        else:
            run("fusermount3", "-u", base + "-moved/mnt")
        equal(m.process.wait(10), 0, "exit of ocrfs")
        check(not is_mounted(base + "-moved/mnt"), "still mounted after the move")
        equal([x for x in mounts() if x[0] == os.fsencode(base + "/mnt")], other,
              "another mount in its old place")
        equal(os.listdir(base + "-moved/mnt"), [], "what is left there")


main()
