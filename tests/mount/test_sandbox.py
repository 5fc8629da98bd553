#!/usr/bin/env python3
"""What the engine and its decode helpers may still do, seen from within and
from outside."""
import glob
import os
import sys
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from harness import *
from scans import *

PROBE = (211, 77)


def fields(pid):
    lines = read_file("/proc/%d/status" % pid).decode().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def helpers(engine):
    return [pid for pid in descendants(engine) if pid != engine]


def sandbox_words():
    engine = os.path.join(BUILD, "ocrfs-engine")
    return run(engine, "--sandbox").decode().split("\t")


def need_sandbox():
    verdict, _, words = sandbox_words()
    if verdict != "ok":
        skip(words.strip())


@test
def doctor_tells_what_locks_the_engine_in():
    out = run(OCRFS, "doctor", status=None).decode()
    verdict, _, words = sandbox_words()
    line = [l for l in out.splitlines() if l.split()[1:2] == ["sandbox"]]
    equal(len(line), 1, "lines about the sandbox")
    check(words.strip() in line[0] and line[0].startswith(verdict), line[0])


@test
def the_engine_opens_no_other_file_and_reaches_no_network():
    need_sandbox()
    with Mount(engine="null:probe=%dx%d" % PROBE) as m:
        m.add("p.png", data=picture(1, *PROBE))
        lines = read_file(m.text("p.png")).decode().split("\n\n")
        equal([l.strip() for l in lines],
              ["open: Permission denied", "make: Permission denied",
               "connect: Permission denied", "trace: Operation not permitted"],
              "what the engine may do")
        # It still does its work, and starts other helpers for it.
        for pid in helpers(m.engine_pids()[0]):
            os.kill(pid, signal.SIGKILL)
        m.add("q.png", seed=2)
        equal(read_file(m.text("q.png")), right_text(m, "q.png"), "a later text")


@test
def no_privileges_are_left():
    need_sandbox()
    with Mount() as m:
        m.add("a.png", seed=1)
        read_file(m.text("a.png"))
        engine = m.engine_pids()[0]
        seen = fields(engine)
        equal((seen["NoNewPrivs"], seen["Seccomp"]), ("1", "2"), "engine")
        equal(int(seen["CapEff"], 16) & ~(1 << 2), 0, "capabilities of the engine")
        check(helpers(engine), "there are no helpers")
        for pid in helpers(engine):
            seen = fields(pid)
            equal((seen["NoNewPrivs"], seen["Seccomp"], seen["Seccomp_filters"]),
                  ("1", "2", "2"), "helper")
            equal((int(seen["CapEff"], 16), int(seen["CapPrm"], 16)), (0, 0),
                  "capabilities of a helper")
            names = sorted(os.listdir("/proc/%d/fd" % pid), key=int)
            equal(names, ["0", "1", "2", "3"], "descriptors of an idle helper")


@test
def root_gives_up_what_a_mount_does_not_need():
    if os.geteuid() != 0:
        skip("needs root, who has something to give up")
    reads = 1 << 2 | 1 << 3  # CAP_DAC_READ_SEARCH, CAP_FOWNER
    for end in (Mount.unmount, Mount.stop):
        with Mount() as m:
            m.add("a.png", seed=1)
            folder = os.path.join(m.source, "private")
            os.mkdir(folder)
            write_file(os.path.join(folder, "b.png"), picture(2))
            for path, mode in ((folder + "/b.png", 0o600), (folder, 0o700)):
                os.chown(path, 60001, 60001)
                os.chmod(path, mode)
            for name in ("a.png", "private/b.png"):
                equal(read_file(m.text(name)), right_text(m, name), name)
            for task in os.listdir("/proc/%d/task" % m.pid):
                seen = fields(int(task))
                equal((int(seen["CapEff"], 16), seen["NoNewPrivs"]), (reads, "1"),
                      "thread " + task)
            end(m)


@test
def a_model_behind_links_is_read():
    """As the cache of a hub lays it out: the folder holds links to a store."""
    need_sandbox()
    with Mount(engine="tesseract") as m:
        packs = glob.glob("/usr/share/tesseract-ocr/*/tessdata/eng.traineddata")
        if not packs:
            skip("there is no English language pack")
        folder, store = (os.path.join(m.base, name) for name in ("model", "store"))
        os.mkdir(folder)
        os.mkdir(store)
        shutil.copy(packs[0], os.path.join(store, "blob"))
        os.symlink("../store/blob", os.path.join(folder, "eng.traineddata"))
        page = os.path.join(DATA, "formats/png-gray8.png")
        out = run(OCRFS, "read", "--engine", "tesseract", "--model", folder, page,
                  env=dict(os.environ, XDG_RUNTIME_DIR=m.runtime))
        check(b"OCRFS 2026" in out, out)


main()
