#!/usr/bin/env python3
"""`ocrfs warm`: all texts below a folder, behind everybody who waits for one."""
import os
import pty
import shutil
import sys
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from harness import *

PAGE = 0.2
SLOW = "null:200ms:workers=4"


def fill(m, count, folders=3):
    names = ["d%d/%03d.png" % (i % folders, i) for i in range(count)]
    for name in names:
        os.makedirs(os.path.dirname(os.path.join(m.source, name)), exist_ok=True)
        m.add(name)
    return names


def pages(m):
    return m.status()["pages"]["done"]


def warm(*argv, status=0, cwd=None):
    _, out, err = run(OCRFS, "warm", *argv, status=status, stderr=True, cwd=cwd)
    return (out + err).decode()


@test
def makes_all_texts_below_as_many_at_once_as_the_engine_takes():
    with Mount(engine=SLOW) as m:
        names = fill(m, 60)
        begin = time.monotonic()
        said = warm(m.path)
        took = time.monotonic() - begin
        check("60 texts" in said, said)
        equal(pages(m), 60, "pages")
        check(took < 60 * PAGE / 4 * 1.5 + 1, "took %.2f s" % took)
        equal(m.status()["readahead"]["started"], 0, "readahead")
        for name in names:
            check(os.stat(m.text(name)).st_size < 100, "size of " + name)
        warm(m.path)
        equal(pages(m), 60, "pages, second time")


@test
def the_folder_is_the_current_one_if_none_is_named():
    with Mount(engine="null") as m:
        fill(m, 30)
        warm(cwd=m.at("d1"))
        equal(pages(m), 10, "pages")


@test
def a_folder_in_no_mount_is_named():
    with Mount(engine="null") as m:
        for folder in (m.source, "/"):
            said = warm(folder, status=2)
            check("no mount of ocrfs" in said and folder in said, said)
        check("No such file" in warm(m.at("none"), status=2), "no such folder")
        m.add("a.png")
        for name in ("a.png", "a.png.md"):
            said = warm(m.at(name), status=2)
            check(m.at(name) in said and "name the folder" in said, said)


@test
def what_failed_is_listed_with_the_reason():
    with Mount(engine="null:fail=160x96", allow=["told to fail", "not-an-image"]) as m:
        names = fill(m, 6)
        m.add(names[2], data=picture(1, 160, 96))
        m.add(names[3], data=b"broken")
        said = warm(m.path, status=1)
        check(re.search(names[2] + r"\.md: the recogniser failed", said), said)
        check(re.search(names[3] + r"\.md: .*no image", said), said)
        check("2 of 6 texts failed" in said, said)


@test
def who_opens_a_text_meanwhile_goes_first():
    with Mount(engine="null:200ms:workers=8") as m:
        names = fill(m, 100)
        p = start(OCRFS, "warm", m.path)
        wait_for(lambda: m.status()["queue"]["running"] >= 15, "a full engine")
        waits = []
        for name in names[-1:-4:-1]:
            begin = time.monotonic()
            read_file(m.text(name))
            waits.append(time.monotonic() - begin)
        check(p.poll() is None, "warm was over before")
        note("waits: " + ", ".join("%.2f s" % w for w in waits))
        check(sorted(waits)[1] < 2 * PAGE, "waited %s" % waits)
        out = p.communicate(timeout=30)
        equal((p.returncode, pages(m)), (0, 100), "exit and pages, %s" % (out,))


@test
def ctrl_c_keeps_what_is_made_and_says_how_far_it_came():
    with Mount(engine=SLOW) as m:
        fill(m, 100)
        p = start(OCRFS, "warm", m.path)
        wait_for(lambda: pages(m) >= 20, "some pages")
        p.send_signal(signal.SIGINT)
        said = p.communicate(timeout=PATIENCE)[1].decode()
        equal(p.returncode, -signal.SIGINT, "exit")
        made = int(re.search(r"stopped: (\d+) of 100 texts are made", said)[1])
        wait_for(lambda: m.status()["queue"]["running"] == 0, "an empty engine")
        before = pages(m)
        check(20 <= made <= before < 60, "%d said, %d made" % (made, before))
        warm(m.path)
        equal(pages(m), 100, "each page was read once")


@test
def a_pause_is_said():
    with Mount(engine="null") as m:
        fill(m, 6)
        run(OCRFS, "pause", m.path)
        p = start(OCRFS, "warm", m.path)
        said = p.stderr.readline().decode()
        check(m.path in said and "ocrfs resume" in said, said)
        equal(pages(m), 0, "pages while paused")
        run(OCRFS, "resume", m.path)
        said = p.communicate(timeout=30)[1].decode()
        check(p.returncode == 0 and "6 texts" in said and "paused" not in said, said)
        equal(pages(m), 6, "pages")


@test
def refresh_makes_texts_of_another_version_again():
    newer = os.path.join(os.environ["OCRFS_TEST_DIR"], "newer")
    os.mkdir(newer)
    shutil.copy(OCRFS, newer)
    engine = read_file(os.path.join(os.path.dirname(OCRFS), "ocrfs-engine"))
    equal(engine.count(b"null 1\0"), 1, "versions in the engine")
    path = os.path.join(newer, "ocrfs-engine")
    write_file(path, engine.replace(b"null 1\0", b"null 2\0"))
    os.chmod(path, 0o755)
    with Mount(engine="null") as m:
        fill(m, 6)
        warm(m.path)
    with Mount(engine="null", source=m.source, cache=m.cache,
               ocrfs=os.path.join(newer, "ocrfs")) as m:
        warm(m.path)
        equal(pages(m), 0, "pages of the old version read again")
        warm("--refresh", m.path)
        equal(pages(m), 6, "pages made by the new version")
        warm("--refresh", m.path)
        equal(pages(m), 6, "pages, second time")


@test
def a_terminal_sees_a_bar():
    with Mount(engine=SLOW) as m:
        fill(m, 40)
        pid, terminal = pty.fork()
        if pid == 0:
            os.execv(OCRFS, [OCRFS, "warm", m.path])
        seen = b""
        with contextlib.suppress(OSError):
            while part := os.read(terminal, 4096):
                seen += part
        equal(os.waitpid(pid, 0)[1], 0, "exit")
        check(re.search(rb"\[#+-+\] \d+/40 texts, [0-9.]+ pages/s, \d+ s left", seen), seen)


main(alone=True)
