#!/usr/bin/env python3
"""What a mount says of itself: the figures are right, and `metrics` is what
Prometheus reads (by promtool as well, where it is installed)."""
import os
import sys
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from harness import *

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(r"(%s)(?:\{(%s(?:,%s)*)?\})? (-?[0-9.]+(?:e[+-]?[0-9]+)?|[+-]Inf|NaN)"
                    % (NAME, LABEL, LABEL))
PARTS = ("_bucket", "_sum", "_count")


def family(name, types):
    for part in PARTS:
        if name.endswith(part) and types.get(name[:-len(part)]) == "histogram":
            return name[:-len(part)]
    return name


def parse(text):
    """{(name, labels): value} of the text format, version 0.0.4."""
    check(text.endswith("\n"), "no newline at the end")
    types, helped, samples, last = {}, set(), {}, None
    for line in text[:-1].split("\n"):
        if m := re.fullmatch(r"# HELP (%s) (\S.*)" % NAME, line):
            check(m[1] not in helped, "two HELP: " + line)
            helped.add(m[1])
            last = m[1]
        elif m := re.fullmatch(r"# TYPE (%s) (counter|gauge|histogram)" % NAME, line):
            check(m[1] not in types and m[1] == last, "TYPE: " + line)
            check((m[2] == "counter") == m[1].endswith("_total"), "name: " + line)
            types[m[1]] = m[2]
        else:
            m = SAMPLE.fullmatch(line)
            check(m, "no sample: " + line)
            check(family(m[1], types) == last and last in types, "order: " + line)
            check((m[1], m[2]) not in samples, "twice: " + line)
            samples[m[1], m[2]] = float(m[3])
    for name in (n for n in types if types[n] == "histogram"):
        buckets = [v for (n, _), v in samples.items() if n == name + "_bucket"]
        equal(buckets, sorted(buckets), "buckets of " + name)
        equal(samples[name + "_bucket", 'le="+Inf"'], samples[name + "_count", None], name)
        check((name + "_sum", None) in samples, "sum of " + name)
    return samples


@test(mounts_something=False)
def the_checker_finds_mistakes():
    good = "# HELP a_total A.\n# TYPE a_total counter\na_total{b=\"c\"} 1\n"
    equal(parse(good), {("a_total", 'b="c"'): 1.0}, "samples")
    for bad in (good[:-1], good.replace("1\n", "one\n"), good + good, good.replace("a_total", "a"),
                good.replace('"c"', "c"), good.replace("# TYPE a_total counter\n", ""),
                good + 'a_total{b="c"} 2\n', good.replace("counter", "thing")):
        try:
            parse(bad)
        except Failed:
            continue
        raise Failed("found nothing in %r" % bad)


@test
def metrics_and_status_agree_with_what_was_done():
    with Mount("prefetch=off", engine="null:20ms:fail=160x96", allow=["told to fail"]) as m:
        for i in range(5):
            m.add("%d.png" % i)
            for _ in range(2):
                read_file(m.text("%d.png" % i))
        m.add("bad.png", data=picture(1, 160, 96))
        fails(errno.EIO, read_file, m.text("bad.png"))
        text = read_file(m.at(".ocrfs/metrics")).decode()
        got, status = parse(text), m.status()
        for name, want in (("pages_done_total", 5), ("pages_failed_total", 1),
                           ("readahead_started_total", 0)):
            equal(got["ocrfs_" + name, None], want, name)
        # Young images are hashed at each open: some of the second ones waited.
        waited = got["ocrfs_opens_waited_total", None]
        check(6 <= waited <= 11, "waited %d" % waited)
        equal(got["ocrfs_opens_known_total", None], 11 - waited, "known")
        equal(got["ocrfs_open_wait_seconds_count", None], waited, "waits")
        for priority in ("interactive", "readahead", "background"):
            equal(got["ocrfs_queue_jobs", 'priority="%s"' % priority], 0, priority)
        waits = status["waits"]
        equal((waits["count"], sum(b["count"] for b in waits["buckets"])), (waited, waited), "waits")
        check(0.1 <= waits["seconds"] < 10, "waited %s" % waits)
        if shutil.which("promtool"):
            run("promtool", "check", "metrics", stdin=text.encode())


@test
def status_watch_shows_it_again_until_the_mount_ends():
    with Mount() as m:
        p = start(OCRFS, "status", "--watch", m.path, env=dict(os.environ))
        time.sleep(2.5)
        check(p.poll() is None, "it ended")
        m.unmount()
        out, _ = p.communicate(timeout=PATIENCE)
        check(out.count(b"mounted at") >= 2, "shown once: %r" % out)
        equal(p.returncode, 1, "exit")
        m.start()


main()
