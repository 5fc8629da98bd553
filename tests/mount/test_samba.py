#!/usr/bin/env python3
"""A mount that Samba exports: smbclient lists it and gets whole texts, of what
was read before and of what was not."""
import os
import socket
import sys
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from harness import *

CONFIG = """[global]
    server role = standalone server
    smb ports = {port}
    interfaces = lo
    bind interfaces only = yes
    map to guest = Bad User
    guest account = {user}
    disable netbios = yes
    load printers = no
    private dir = {base}/private
    lock directory = {base}
    state directory = {base}
    cache directory = {base}
    pid directory = {base}
    ncalrpc dir = {base}/ncalrpc
    log file = {base}/smbd.log
[texts]
    path = {path}
    guest ok = yes
    read only = yes
"""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Smbd:
    def __init__(self, path):
        need("smbd", "smbclient")
        if os.geteuid() != 0:
            skip("smbd is started by root")
        self.base = os.environ["OCRFS_TEST_DIR"] + "/smbd"
        os.makedirs(self.base + "/private")
        self.port = free_port()
        write_file(self.base + "/smb.conf", CONFIG.format(
            port=self.port, user="root", base=self.base, path=path).encode())
        # In a group of processes of its own: at its end it ends the whole of it.
        self.process = start("smbd", "--foreground", "--no-process-group", "--configfile",
                             self.base + "/smb.conf", start_new_session=True)
        wait_for(self.answers, "smbd", 30)

    def answers(self):
        if self.process.poll() is not None:
            raise Failed("smbd ended: %r" % self.process.stderr.read()[-500:])
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", self.port)) == 0

    def do(self, command):
        return run("smbclient", "//127.0.0.1/texts", "-p", str(self.port), "-N", "-s",
                   self.base + "/smb.conf", "-c", command, cwd=self.base).decode()


@tests([("bound", "size=bound"), ("wait", "size=wait")], limit=120)
def smbclient_gets_whole_texts(mode):
    with Mount(mode, "allow_other", engine="null:50ms") as m:
        names = ["%d.png" % i for i in range(6)]
        for name in names:
            m.add(name)
        want = {n: m.read_directly(n) for n in names}
        read_file(m.text("0.png"))
        smbd = Smbd(m.path)
        shown = smbd.do("ls")
        for name in names:
            check(" %s " % name in shown and " %s.md " % name in shown,
                  "%s is not in %s" % (name, shown))
            smbd.do("get %s.md" % name)
            equal(read_file(smbd.base + "/%s.md" % name), want[name], name)
        smbd.process.terminate()
        smbd.process.wait(20)


main()
