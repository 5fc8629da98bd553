#!/usr/bin/env python3
"""The Debian packages of build/deb: `make check-deb` builds them before. They
are installed, upgraded and purged in a Debian of their own, where a user
without rights mounts and reads."""
import glob
import os
import sys
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from harness import *

DEBS = os.path.join(ROOT, "build/deb")
SUITE = "bookworm"


def package(name="ocrfs"):
    found = glob.glob("%s/%s_*.deb" % (DEBS, name))
    check(len(found) == 1, "packages %s in build/deb: %r (run make deb)" % (name, found))
    return found[0]


def fields(deb):
    text = run("dpkg-deb", "-f", deb).decode()
    return dict(re.findall(r"^([A-Z][\w-]*): (.*)$", text, re.M))


@test(limit=120, mounts_something=False)
def lintian_finds_no_errors():
    need("lintian")
    out = run("lintian", "--allow-root", "--fail-on", "error", *glob.glob(DEBS + "/*.changes"),
              status=None, limit=100).decode()
    equal([l for l in out.splitlines() if l.startswith("E:")], [], "errors")
    for line in out.splitlines():
        note(line)


@test(mounts_something=False)
def what_needs_a_gpu_is_only_suggested():
    control = fields(package())
    for field in ("Depends", "Recommends"):
        check("cuda" not in control[field] and "cublas" not in control[field],
              "%s: %s" % (field, control[field]))
    check("ocrfs-cuda" in control["Suggests"], "Suggests: " + control["Suggests"])
    files = run("dpkg-deb", "-c", package()).decode()
    check("ocrfs-tesseract.so" in files and "ocrfs-cuda.so" not in files, files)
    if not glob.glob(DEBS + "/ocrfs-cuda_*.deb"):
        skip("no ocrfs-cuda was built (CUDA=0)")
    control = fields(package("ocrfs-cuda"))
    equal(control["Depends"].split(", ")[0], "ocrfs (= %s)" % fields(package())["Version"],
          "what ocrfs-cuda depends on")
    files = run("dpkg-deb", "-c", package("ocrfs-cuda")).decode()
    check("./usr/lib/ocrfs/ocrfs-cuda.so" in files, files)


# --- a Debian of its own ----------------------------------------------------

class Debian:
    def __init__(self):
        self.root = os.environ["OCRFS_TEST_DIR"] + "/root"
        run("debootstrap", "--variant=minbase", SUITE, self.root, limit=300)
        run("mount", "-t", "proc", "proc", self.root + "/proc")
        # As systemd makes it.
        os.symlink("../proc/self/mounts", self.root + "/etc/mtab")
        # As udev makes it, whatever the mode of ours.
        os.mknod(self.root + "/dev/fuse", stat.S_IFCHR | 0o666, os.stat("/dev/fuse").st_rdev)
        os.chmod(self.root + "/dev/fuse", 0o666)
        for name in ("resolv.conf", "hosts"):
            shutil.copy("/etc/" + name, self.root + "/etc/" + name)
        # No service starts in here.
        write_file(self.root + "/usr/sbin/policy-rc.d", b"#!/bin/sh\nexit 101\n")
        os.chmod(self.root + "/usr/sbin/policy-rc.d", 0o755)

    def shell(self, script, user="root", limit=200):
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive",
               "LC_ALL": "C.UTF-8", "HOME": "/root"}
        for name in ("http_proxy", "https_proxy"):
            if name in os.environ:
                env[name] = os.environ[name]
        inner = ["sh", "-ec", script]
        if user != "root":
            inner = ["su", "-", user, "-s", "/bin/sh", "-c", "set -e\n" + script]
        return run("chroot", self.root, *inner, env=env, limit=limit).decode()

    def offer(self, deb, name):
        shutil.copy(deb, self.root + "/tmp/" + name)

    def files(self):
        out = run("find", ".", "-xdev", "-path", "*ocrfs*", cwd=self.root).decode().splitlines()
        return sorted(l[1:] for l in out)


def older(deb):
    """The same package as an earlier version."""
    folder = os.environ["OCRFS_TEST_DIR"] + "/older"
    run("dpkg-deb", "-R", deb, folder)
    control = read_file(folder + "/DEBIAN/control").decode()
    write_file(folder + "/DEBIAN/control",
               re.sub(r"(?m)^Version: .*$", "Version: 0.0.1", control).encode())
    run("dpkg-deb", "--root-owner-group", "-b", folder, folder + ".deb")
    return folder + ".deb"


@test(limit=500)
def install_read_upgrade_purge():
    need("debootstrap")
    if os.geteuid() != 0:
        skip("only root can make a Debian in a folder")
    debian = Debian()
    debian.offer(package(), "ocrfs_new.deb")
    debian.offer(older(package()), "ocrfs_old.deb")
    os.mkdir(debian.root + "/srv/scans")
    shutil.copy(os.path.join(DATA, "samples/receipt.jpg"), debian.root + "/srv/scans")
    debian.shell("apt-get update -q; apt-get install -qy /tmp/ocrfs_old.deb", limit=300)
    debian.shell("useradd -m reader; rm -f /tmp/ocrfs_old.deb")

    debian.shell("mkdir texts; ocrfs /srv/scans texts", "reader")
    text = debian.shell("cat texts/receipt.jpg.md", "reader")
    check("TOTAL" in text.upper(), "the text: " + text)
    doctor = debian.shell("ocrfs doctor", "reader")
    check("missing" not in doctor, "doctor: " + doctor)

    # The mount lives through an upgrade.
    debian.shell("apt-get install -qy /tmp/ocrfs_new.deb; rm /tmp/ocrfs_new.deb")
    version = debian.shell("dpkg-query -Wf '${Version}' ocrfs")
    equal(version, fields(package())["Version"], "the version after the upgrade")
    equal(debian.shell("ocrfs --version").split()[1], version, "what ocrfs says")
    equal(debian.shell("cat texts/receipt.jpg.md", "reader"), text, "the text after the upgrade")
    debian.shell("fusermount3 -u texts; ocrfs /srv/scans texts", "reader")
    equal(debian.shell("cat texts/receipt.jpg.md", "reader"), text, "the text of the new mount")
    debian.shell("fusermount3 -u texts", "reader")
    # Root's: in /var/cache and /run.
    debian.shell("ocrfs read /srv/scans/receipt.jpg >/dev/null")
    check("/var/cache/ocrfs" in debian.files(), "root has no cache")

    debian.shell("apt-get purge -qy ocrfs; apt-get autoremove --purge -qy")
    left = [f for f in debian.files() if not f.startswith("/tmp/ocrfs-")]
    outside = [f for f in left if not f.startswith("/home/reader/.cache/ocrfs")]
    equal(outside, [], "left by purge")
    check("/home/reader/.cache/ocrfs" in left, "the user's cache is gone: %r" % left)


main()
