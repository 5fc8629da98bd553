#!/usr/bin/env python3
"""What a walk through many files leaves in ocrfs: memory in proportion to what
the kernel knows, and nothing once the kernel forgets. OCRFS_LONG=1: 200,000
images, ten times."""
import os
import sys
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from harness import *
from scans import *

LONG = bool(os.environ.get("OCRFS_LONG"))
FOLDERS = 2000 if LONG else 40
EACH = 100
TIMES = 10 if LONG else 4
# 200 MiB for 200,000 images and their texts; before the first walk there are
# a few MiB.
NODE_BYTES = (200 << 20) // (2 * 200000)
FEW = 100


def descriptors_of(pid):
    return len(os.listdir("/proc/%d/fd" % pid))


def forgotten(m):
    """The kernel frees a folder only after what was in it."""
    write_file("/proc/sys/vm/drop_caches", b"2")
    return m.status()["nodes"] <= FEW


@test(limit=900)
def a_walk_through_many_files():
    with Mount("prefetch=off") as m:
        for i in range(FOLDERS):
            folder = m.source + "/%04d" % i
            os.mkdir(folder)
            for k in range(EACH):
                os.close(os.open("%s/%03d.png" % (folder, k), os.O_CREAT | os.O_WRONLY))
        before, highest = memory_of(m.pid), []
        for _ in range(TIMES):
            out = run("find", m.path, "-printf", "%s\\n", limit=300)
            equal(len(out.splitlines()), 1 + FOLDERS + 2 * FOLDERS * EACH, "files found")
            highest.append(memory_of(m.pid))
        nodes = m.status()["nodes"]
        note("%d nodes: %s MiB, %d descriptors" % (
            nodes, ", ".join("%.1f" % (h / 2**20) for h in highest), descriptors_of(m.pid)))
        check(highest[0] - before < NODE_BYTES * nodes, "%d bytes a node" % (
            (highest[0] - before) // nodes))
        check(highest[-1] - highest[0] < 2 << 20, "grew by %d KiB" % (
            (highest[-1] - highest[0]) >> 10))
        check(descriptors_of(m.pid) <= 100, "%d descriptors" % descriptors_of(m.pid))
        if os.geteuid() != 0:
            skip("only root drops the kernel's caches")
        wait_for(lambda: forgotten(m), "all nodes but a few to go", 120)
        wait_for(lambda: m.status()["watch"]["folders"] <= FEW, "the watches to go", 60)
        note("%d nodes and %d watches are left" % (
            m.status()["nodes"], m.status()["watch"]["folders"]))


@test(limit=300)
def descriptors_after_reading_many_files():
    count = 15000 if LONG else 600
    with Mount() as m:
        for i in range(count):
            m.add("%05d.png" % i, data=version(i % 50))
        run("sh", "-c", 'cat "$1"/*.png > /dev/null', "sh", m.path, limit=200)
        run("grep", "-r", "nothing", m.path, status=1, limit=200)
        note("%d descriptors after %d originals and texts" % (descriptors_of(m.pid), count))
        check(descriptors_of(m.pid) <= 100, "%d descriptors" % descriptors_of(m.pid))


main()
