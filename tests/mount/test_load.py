#!/usr/bin/env python3
"""A thousand programs at once: nobody else waits, nothing grows, all can go."""
import os
import sys
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from harness import *
from scans import *

MANY = 1000
SLOW = "null:30s"


def time_of(*argv):
    begin = time.monotonic()
    run(*argv)
    return time.monotonic() - begin


@test(limit=300)
def a_thousand_programs_open_a_thousand_unread_texts():
    with Mount(engine="null:200ms") as m:
        names = add_pictures(m, MANY)
        read_file(m.text(names[0]))
        run("ls", "-l", m.path)
        rss = memory_of(m.pid)
        readers = Readers(m, names[1:], gate=True)
        wait_for(lambda: readers.at_gate() == MANY - 1, "the programs", 120)
        readers.open_gate()
        most_threads, most_rss, listing, waiting = 0, 0, [], 0
        while readers.alive():
            waiting = max(waiting, m.status()["queue"]["waiting"]["interactive"])
            listing.append(time_of("ls", "-l", m.path))
            most_threads = max(most_threads, threads_of(m.pid))
            most_rss = max(most_rss, memory_of(m.pid))
        readers.all_right()
        listing.sort()
        note("ls -l of %d files meanwhile: median %.3f s, longest %.3f s; at most %d "
             "threads, %.1f MiB more, %d pages waiting" % (
                 2 * MANY, listing[len(listing) // 2], listing[-1], most_threads,
                 (most_rss - rss) / 2**20, waiting))
        check(most_threads <= 24, "%d threads" % most_threads)
        check(most_rss - rss < 4 << 20, "grew by %d KiB" % ((most_rss - rss) >> 10))
        check(listing[len(listing) // 2] < 1, "ls took %.3f s" % listing[len(listing) // 2])
        equal(pages_read(m), MANY, "pages read")


@test(limit=300)
def a_thousand_waiting_programs_are_terminated():
    with Mount(engine=SLOW) as m:
        names = add_pictures(m, MANY)
        run("ls", "-l", m.path)
        rss = memory_of(m.pid)
        readers = Readers(m, names)
        wait_for(lambda: readers.waiting() == MANY, "all to wait", 120)
        grown = memory_of(m.pid) - rss
        note("%d wait: ls -l takes %.3f s; %d threads, %.1f MiB more" % (
            MANY, time_of("ls", "-l", m.path), threads_of(m.pid), grown / 2**20))
        check(threads_of(m.pid) <= 24, "%d threads" % threads_of(m.pid))
        check(grown < 4 << 20, "grew by %d KiB" % (grown >> 10))
        begin = time.monotonic()
        readers.signal(signal.SIGTERM)
        readers.join(20)
        took = time.monotonic() - begin
        note("%d waiting programs gone after %.2f s" % (MANY, took))
        check(took < 5, "%.2f s" % took)
        for name, status, out, _ in readers.results():
            equal((status, out), (-signal.SIGTERM, b""), "reader of " + name)
        # Jobs without waiters that had not started are dropped.
        wait_for(lambda: m.status()["queue"]["waiting"]["interactive"] == 0, "an empty queue")
        m.stop()


@test(limit=60)
def signals_that_end_nothing_disturb_nobody():
    with Mount(engine="null:2s") as m:
        names = add_pictures(m, 8)
        readers = Readers(m, names[:6])
        ringing = Readers(m, names[6:], program=(os.path.join(TOOLS, "alarmopen"),))
        wait_for(lambda: readers.waiting() == 6, "all to wait")
        for _ in range(10):
            readers.signal(signal.SIGWINCH)
            time.sleep(0.02)
        for p in readers.processes[:3]:
            p.send_signal(signal.SIGSTOP)
        time.sleep(0.3)
        for p in readers.processes[:3]:
            p.send_signal(signal.SIGCONT)
        readers.all_right(20)
        ringing.all_right(20)
        equal(pages_read(m), 8, "pages read")


@test(limit=60)
def fifty_readers_of_one_text():
    with Mount(engine="null:500ms") as m:
        m.add("a.png", seed=7)
        readers = Readers(m, ["a.png"] * 50)
        readers.all_right(30)
        equal(pages_read(m), 1, "pages read")


@test(limit=60)
def some_of_fifty_readers_leave():
    with Mount(engine="null:2s") as m:
        m.add("a.png", seed=7)
        readers = Readers(m, ["a.png"] * 50)
        wait_for(lambda: readers.waiting() == 50, "all to wait")
        for p in readers.processes[:49]:
            p.kill()
        wait_for(lambda: readers.alive() == 1, "the killed to be gone")
        equal(readers.processes[49].wait(20), 0, "exit of the one that stayed")
        equal(readers.results()[49][2], right_text(m, "a.png"), "its text")
        equal(pages_read(m), 1, "pages read")


main(alone=True)
