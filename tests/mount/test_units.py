#!/usr/bin/env python3
"""systemd units and the examples beside them: they are well formed, what they
start mounts with the privileges they leave, and sleep pauses the mounts."""
import os
import shlex
import socket
import sys
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from harness import *

UNITS = os.path.join(ROOT, "packaging/systemd")
EXAMPLES = os.path.join(ROOT, "packaging/examples")


def filled(name, as_file=None):
    """A unit as `make install` writes it, for the programs of this build."""
    text = read_file(os.path.join(UNITS, name + ".in")).decode().replace("@BINDIR@", BUILD)
    path = os.path.join(os.environ["OCRFS_TEST_DIR"], as_file or name)
    write_file(path, text.encode())
    return path


def setting(path, name):
    """The values of `name` in a unit."""
    return re.findall(r"^%s=(.*)$" % name, read_file(path).decode(), re.M)


@test(mounts_something=False)
def the_units_are_well_formed():
    need("systemd-analyze")
    base = os.environ["OCRFS_TEST_DIR"]
    shutil.copy(EXAMPLES + "/srv-texts.mount", base)
    cases = [("system", filled("ocrfs@.service"), "ocrfs@scans.service"),
             ("system", filled("ocrfs-sleep.service"), "ocrfs-sleep.service"),
             ("system", base + "/srv-texts.mount", "srv-texts.mount"),
             ("user", filled("ocrfs@.user.service", "user.service"), "ocrfs@scans.service")]
    for manager, path, name in cases:
        there = os.path.join(base, name)
        if path != there:
            shutil.copy(path, there)
        status, out, err = run("systemd-analyze", "verify", "--" + manager, "--man=no",
                               "--recursive-errors=no", there, status=None, stderr=True)
        # Where no systemd runs it may have to say so; only lines on ours count.
        lines = [l for l in (out + err).decode().splitlines() if name.split("@")[0] in l]
        equal((status, lines), (0, []), "systemd-analyze verify " + name)


def start_as_unit(unit, conf, privileges=()):
    """Runs ExecStart= as systemd would; returns the process when it said
    READY=1."""
    base = os.environ["OCRFS_TEST_DIR"]
    env = {"OPTIONS": "", "HOME": "/", "PATH": "/usr/bin:/bin:/usr/sbin:/sbin"}
    for line in conf.splitlines():
        if line and line[0] != "#":
            name, value = line.split("=", 1)
            env[name] = shlex.split(value)[0] if value else ""
    argv = [re.sub(r"\$\{(\w+)\}", lambda m: env[m[1]], word)
            for word in shlex.split(setting(unit, "ExecStart")[0])]
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind(base + "/notify")
    listener.settimeout(30)
    process = start(*privileges, *argv, env=dict(env, NOTIFY_SOCKET=base + "/notify"))
    said = listener.recv(4096).decode()
    check("READY=1" in said, "to systemd: %r" % said)
    return process


def conf_for(m, more=""):
    """The example of a configuration, with the folders of the test in it."""
    text = read_file(EXAMPLES + "/NAME.conf").decode()
    check("/srv/scans" in text and "/srv/texts" in text, "the example: " + text)
    options = ",".join(["engine=null", "cache=" + m.cache, "runtime=" + m.runtime, *more])
    text = text.replace("/srv/scans", m.source).replace("/srv/texts", m.path)
    return re.sub(r"OPTIONS=.*", 'OPTIONS="%s"' % options, text)


def mounts_and_ends(unit, privileges, more=()):
    m = Mount()
    m.add("a b.png")
    process = start_as_unit(unit, conf_for(m, more), privileges)
    check(is_mounted(m.path), "READY=1, but nothing is mounted")
    equal(read_file(m.text("a b.png")), m.read_directly("a b.png"), "the text")
    process.terminate()
    equal(process.wait(20), 0, "exit status")
    check(not is_mounted(m.path), "still mounted")


@test
def the_system_s_service_mounts_with_the_privileges_it_has():
    need("setpriv")
    if os.geteuid() != 0:
        skip("only root has privileges to give up")
    unit = filled("ocrfs@.service")
    kept = ["+" + name.lower().replace("cap_", "", 1)
            for name in setting(unit, "CapabilityBoundingSet")[0].split()]
    equal(setting(unit, "NoNewPrivileges"), ["yes"], "NoNewPrivileges")
    mounts_and_ends(unit, ["setpriv", "--bounding-set", ",".join(["-all", *kept]),
                           "--no-new-privs"], ["allow_other"])


@test
def the_user_s_service_mounts():
    mounts_and_ends(filled("ocrfs@.user.service"), [])


@test(mounts_something=False)
def the_services_keep_the_mount_visible():
    own_namespace = ("ProtectSystem ProtectHome PrivateTmp PrivateDevices PrivateMounts "
                     "PrivateUsers ProtectKernelTunables ProtectKernelModules ProtectKernelLogs "
                     "ProtectControlGroups ProtectProc ReadOnlyPaths ReadWritePaths "
                     "InaccessiblePaths BindPaths TemporaryFileSystem RootDirectory DynamicUser "
                     "PrivateNetwork MountFlags").split()
    for name in ("ocrfs@.service.in", "ocrfs@.user.service.in"):
        for bad in own_namespace:
            equal(setting(os.path.join(UNITS, name), bad), [], bad + " in " + name)


@test
def sleep_pauses_and_waking_resumes():
    unit = filled("ocrfs-sleep.service")
    equal(setting(unit, "Before"), ["sleep.target"], "Before=")
    with Mount(engine="null:60s") as m:
        m.add("a.png")
        reader = start("cat", m.text("a.png"))
        wait_for(lambda: parked(reader.pid), "a reader that waits")
        # Only this mount: others may run beside the test.
        run(*shlex.split(setting(unit, "ExecStart")[0].lstrip("-")), m.path)
        equal(reader.wait(20), 1, "exit status of the reader")
        check(b"Interrupted" in reader.stderr.read(), "what the reader said")
        # Not os.open, which tries again.
        run("cat", m.text("a.png"), status=1)
        run(*shlex.split(setting(unit, "ExecStop")[0].lstrip("-")), m.path)
        reader = start("cat", m.text("a.png"))
        wait_for(lambda: parked(reader.pid), "a reader that waits again")
        reader.kill()
        reader.wait(20)


@test(mounts_something=False)
def the_lines_for_fstab_are_understood():
    need("findmnt")
    base = os.environ["OCRFS_TEST_DIR"]
    text = read_file(EXAMPLES + "/fstab").decode().replace("/srv/", base + "/")
    write_file(base + "/fstab", text.encode())
    os.mkdir(base + "/texts")
    lines = run("findmnt", "--tab-file", base + "/fstab", "-nro", "TARGET,FSTYPE,OPTIONS").decode()
    lines = [l.split(" ") for l in lines.splitlines()]
    equal([l[:2] for l in lines], [[base + "/texts", "fuse.ocrfs"],
                                   [base + "/texts\\x20fax", "fuse.ocrfs"]], "lines")
    known = {l.split("\t")[0] for l in run(OCRFS, "help", "--list", "mount").decode().splitlines()}
    for options in (lines[0][2], lines[1][2]):
        for word in options.split(","):
            name = word.split("=")[0]
            check(name in known | {"nofail"} or name.startswith("x-systemd."),
                  "option %s of the example" % name)


main()
