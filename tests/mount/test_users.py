#!/usr/bin/env python3
"""Ordinary users: the other mount tests as one of them, and two of them on one
mount. Needs root, which may become anybody; /dev/fuse is opened for all in a
private mount namespace only."""
import os
import sys
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from harness import *

ALICE, BOB = 60001, 60002


def need_root():
    if os.geteuid() != 0:
        skip("needs root to become other users")
    need("setpriv", "unshare")


def private_fuse():
    """From here on this process has a /dev/fuse, a fuse.conf and a passwd of
    its own, in which Alice and Bob exist and may mount."""
    libc = ctypes.CDLL(None, use_errno=True)
    CLONE_NEWNS, MS_BIND, MS_REC, MS_PRIVATE = 0x20000, 0x1000, 0x4000, 0x40000
    base = os.environ["OCRFS_TEST_DIR"].encode()

    def ok(result):
        check(result == 0, os.strerror(ctypes.get_errno()))

    ok(libc.unshare(CLONE_NEWNS))
    ok(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
    os.mkdir(base + b"/dev")
    ok(libc.mount(b"none", base + b"/dev", b"tmpfs", 0, None))
    device = base + b"/dev/fuse"
    os.mknod(device, stat.S_IFCHR | 0o666, os.stat("/dev/fuse").st_rdev)
    os.chmod(device, 0o666)
    ok(libc.mount(device, b"/dev/fuse", None, MS_BIND, None))
    users = read_file("/etc/passwd") + b"".join(
        b"%s:x:%d:%d::/nowhere:/bin/sh\n" % user for user in
        ((b"alice", ALICE, ALICE), (b"bob", BOB, BOB)))
    for name, content in ((b"fuse.conf", b"user_allow_other\n"), (b"passwd", users)):
        write_file(base + b"/" + name, content)
        ok(libc.mount(base + b"/" + name, b"/etc/" + name, None, MS_BIND, None))


def as_user(uid):
    """argv that runs the rest as this user, with no rights of root."""
    return ["setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups",
            "--inh-caps=-all", "--"]


def public_copy():
    """The programs and tests where every user can read them."""
    base = os.path.join(os.environ["OCRFS_TEST_DIR"], "copy")
    build = os.path.join(base, "build/opt")
    os.makedirs(build + "/tests")
    for name in ("ocrfs", "ocrfs-engine", "ocrfs-tesseract.so"):
        if os.path.exists(os.path.join(BUILD, name)):
            shutil.copy(os.path.join(BUILD, name), build)
    shutil.copytree(TOOLS, build + "/tests/tools")
    for name in ("lib", "mount"):
        shutil.copytree(os.path.join(ROOT, "tests", name), os.path.join(base, "tests", name),
                        ignore=shutil.ignore_patterns("__pycache__"))
    run("chmod", "-R", "a+rX", base)
    return base, build


def as_ordinary_user(name, *words):
    need_root()
    private_fuse()
    base, build = public_copy()
    home = os.path.join(os.environ["OCRFS_TEST_DIR"], "alice")
    os.mkdir(home)
    os.chown(home, ALICE, ALICE)
    env = {"PATH": os.environ["PATH"], "HOME": home, "TMPDIR": home, "BUILD": build,
           "PYTHONDONTWRITEBYTECODE": "1"}
    status, out, err = run(*as_user(ALICE), "/usr/bin/python3",
                           os.path.join(base, "tests/mount", name), *words,
                           status=None, stderr=True, env=env, limit=280)
    lines = out.decode(errors="replace").splitlines()
    bad = [l for l in lines if l.startswith("not ok")]
    passed = [l for l in lines if l.startswith("ok") and "# SKIP" not in l]
    for l in lines:
        if "# SKIP" in l:
            note("as a user: " + l)
    note("%s as a user: %d passed" % (name, len(passed)))
    check(not bad and status == 0, "\n".join(bad) + "\n" + err.decode(errors="replace")[-3000:])
    check(passed, "nothing ran: " + out.decode())


tests([
    ("read-only", "test_readonly.py"),
    ("names", "test_names.py"),
    ("start and stop", "test_start_stop.py"),
    ("programs", "test_programs.py", "with bound"),
    ("dying engines", "test_engine_death.py"),
    ("changes", "test_changes.py", "image"),
    ("damaged cache", "test_cache_damage.py"),
], limit=300)(as_ordinary_user)
tests([
    ("load", "test_load.py"),
    ("slow source", "test_slow_source.py"),
], limit=300, alone=True)(as_ordinary_user)


# --- two users, one mount ---------------------------------------------------

class TwoUsers(Mount):
    """A mount of root (allow_other) over images of two users."""

    def __init__(self, *options, **kwargs):
        need_root()
        private_fuse()
        super().__init__("allow_other", *options, **kwargs)
        os.chmod(self.base, 0o755)
        for uid, name in ((ALICE, "alice"), (BOB, "bob")):
            os.mkdir(os.path.join(self.source, name))
            self.own(name + "/private.png", uid, 0o600, seed=name)
            self.own(name + "/open.png", uid, 0o644, seed=name + " open")

    def own(self, name, uid, mode, seed):
        path = self.add(name, seed=seed)
        os.chown(path, uid, uid)
        os.chmod(path, mode)

    def cat(self, uid, path):
        return run(*as_user(uid), "cat", path, status=None, stderr=True)


def nobody_reads_what_the_image_does_not_allow(m):
    for me, uid, other in (("alice", ALICE, "bob"), ("bob", BOB, "alice")):
        for path in (m.at(me + "/private.png"), m.text(me + "/private.png"),
                     m.text(other + "/open.png")):
            status, out, err = m.cat(uid, path)
            check(status == 0 and out, "%s cannot read %s: %s" % (me, path, err.decode()))
        for path in (m.at(other + "/private.png"), m.text(other + "/private.png")):
            status, out, err = m.cat(uid, path)
            equal((status, out), (1, b""), "%s reads %s" % (me, path))
            check(b"Permission denied" in err, err.decode())


@test
def nobody_reads_the_private_images_and_texts_of_others():
    m = TwoUsers()
    with m:
        nobody_reads_what_the_image_does_not_allow(m)
        # Now everything is in the caches of the kernel and of ocrfs.
        nobody_reads_what_the_image_does_not_allow(m)


@test
def a_folder_of_another_user_stays_closed():
    m = TwoUsers()
    os.chmod(os.path.join(m.source, "bob"), 0o700)
    os.chown(os.path.join(m.source, "bob"), BOB, BOB)
    with m:
        for path in (m.at("bob/open.png"), m.text("bob/open.png")):
            equal(m.cat(BOB, path)[0], 0, "the owner")
            equal(m.cat(ALICE, path)[:2], (1, b""), "another user")
        equal(run(*as_user(ALICE), "ls", m.at("bob"), status=None), b"", "listing")


@test
def the_control_folder_is_the_mounters():
    m = TwoUsers()
    with m:
        status, out, _ = m.cat(ALICE, m.at(".ocrfs/status"))
        equal((status, out), (1, b""), "another user reads the status")
        m.status()


@test
def the_same_image_of_two_users_is_read_twice():
    # Else one could learn from the speed or the size that the other has it.
    m = TwoUsers()
    m.own("alice/same.png", ALICE, 0o600, seed="same")
    m.own("bob/same.png", BOB, 0o600, seed="same")
    with m:
        text = m.cat(ALICE, m.text("alice/same.png"))[1]
        check(text, "no text")
        size = int(run(*as_user(BOB), "stat", "-c", "%s", m.text("bob/same.png")))
        equal(size, 65536, "the size that the other sees")
        equal(m.cat(BOB, m.text("bob/same.png"))[1], text, "the text")


@test
def share_all_shares():
    m = TwoUsers("share=all")
    m.own("alice/same.png", ALICE, 0o600, seed="same")
    m.own("bob/same.png", BOB, 0o600, seed="same")
    with m:
        text = m.cat(ALICE, m.text("alice/same.png"))[1]
        equal(m.cat(BOB, m.text("bob/same.png"))[1], text, "the text")
        nobody_reads_what_the_image_does_not_allow(m)


@test
def without_allow_other_nobody_else_gets_in():
    need_root()
    private_fuse()
    with Mount() as m:
        m.add("a.png")
        os.chmod(m.base, 0o755)
        for path in (m.at("a.png"), m.text("a.png"), m.path):
            status, out, err = run(*as_user(ALICE), "ls", path, status=None, stderr=True)
            check(status != 0 and b"Permission denied" in err, err.decode())


@test
def root_pauses_and_looks_into_the_mounts_of_users():
    # A hook before the machine sleeps is root's; the kernel lets only Alice in.
    need_root()
    private_fuse()
    _, build = public_copy()
    home = os.path.join(os.environ["OCRFS_TEST_DIR"], "alice")
    for name in ("", "source", "mnt", "cache", "run"):
        os.mkdir(os.path.join(home, name), 0o700)
        os.chown(os.path.join(home, name), ALICE, ALICE)
    point, program = home + "/mnt", build + "/ocrfs"
    p = start(*as_user(ALICE), program, home + "/source", point, "-f", "-o",
              "engine=null,cache=%s/cache,runtime=%s/run" % (home, home))

    def alice():
        return json.loads(run(*as_user(ALICE), "cat", point + "/.ocrfs/status.json"))

    wait_for(lambda: is_mounted(point), "mount")
    fails(errno.EACCES, os.stat, point + "/.ocrfs/status")
    run(program, "pause", point)
    equal(alice()["paused"], True, "after pause")
    run(program, "resume", point)
    equal(alice()["paused"], False, "after resume")
    check(b"mounted at  " + point.encode() in run(program, "status", point), "status")
    run(*as_user(BOB), program, "pause", point, status=1)
    equal(alice()["paused"], False, "after Bob's pause")
    run(*as_user(ALICE), "fusermount3", "-u", point)
    equal(p.wait(10), 0, "exit of ocrfs")


@test
def an_acl_does_not_open_a_file_to_its_group():
    # With an ACL the group bits are its mask: shown as they are, they would
    # grant more than SOURCE does.
    need("setfacl")
    m = TwoUsers()
    m.own("alice/acl.png", ALICE, 0o600, seed="acl")
    path = os.path.join(m.source, "alice/acl.png")
    os.chown(path, ALICE, BOB)
    if run("setfacl", "-m", "u:%d:r" % (BOB + 1), path, status=None, stderr=True)[0] != 0:
        skip("no ACLs on this file system")
    with m:
        equal(m.cat(BOB, path)[0], 1, "the group in SOURCE")
        for p in (m.at("alice/acl.png"), m.text("alice/acl.png")):
            equal(m.cat(BOB, p)[:2], (1, b""), "the group in the mount")


main()
