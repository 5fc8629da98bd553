#!/usr/bin/env python3
"""`ocrfs doctor` on machines that lack something, and `ocrfs bench`."""
import os
import sys
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from harness import *


def base():
    return os.environ["OCRFS_TEST_DIR"]


def doctor(*more, before=(), status=0):
    """{subject: (verdict, sentence)} of its lines."""
    os.makedirs(base() + "/run", 0o700, exist_ok=True)
    got, out, err = run(*before, OCRFS, "doctor", "--runtime", base() + "/run", "--cache",
                        base() + "/cache", *more, status=None, stderr=True)
    lines = {}
    for line in out.decode().splitlines():
        match = re.fullmatch(r"(ok|note|missing) +(\S.{0,13}?) +(\S.*)", line)
        check(match, "a line of another form: %r" % line)
        lines[match[2]] = (match[1], match[3])
    bad = [s for s, (verdict, _) in lines.items() if verdict == "missing"]
    equal((got, bool(bad)), (status, status == 1), "exit status, missing; it said %r" % (out + err))
    return lines


@test
def nothing_is_missing_where_tests_run():
    lines = doctor("--engine", "tesseract")
    for subject in ("/dev/fuse", "fusermount3", "mount", "allow_other", "cache", "runtime",
                    "engine", "recogniser", "memory", "GPU"):
        check(subject in lines, "nothing on %s: %r" % (subject, sorted(lines)))
    equal(lines["mount"][0], "ok", "mount")
    equal([n for n in os.listdir(base()) if "trial" in n], [], "left by the mount that was tried")


@test(mounts_something=False)
def a_language_that_is_not_installed():
    lines = doctor("--engine", "tesseract", "--lang", "eng+tlh", status=1)
    missing = [sentence for verdict, sentence in lines.values() if verdict == "missing"]
    check(any("tesseract-ocr-tlh" in s for s in missing), missing)


@test(mounts_something=False)
def no_model_and_a_broken_one():
    os.environ.pop("OCRFS_MODEL", None)
    os.environ["XDG_DATA_HOME"] = base() + "/data"
    if "none, " not in doctor()["model"][1]:
        skip("there is a model for all users of this machine")
    check("ocrfs model fetch" in doctor()["model"][1], doctor()["model"])
    folder = base() + "/data/ocrfs/models/broken"
    os.makedirs(folder)
    write_file(folder + "/config.json", b"{}")
    lines = doctor(status=1)
    check(folder in lines["engine"][1] or folder in lines["recogniser"][1], lines)


@test(mounts_something=False)
def a_runtime_folder_of_everybody():
    os.mkdir(base() + "/run")
    os.chmod(base() + "/run", 0o777)
    lines = doctor(status=1)
    check("nobody else can write" in lines["runtime"][1], lines["runtime"])


@test(mounts_something=False)
def no_device():
    need("unshare")
    if os.geteuid() != 0:
        skip("needs root for a /dev of its own")
    lines = doctor(before=["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /dev && exec "$@"',
                           "sh"], status=1)
    check("modprobe fuse" in lines["/dev/fuse"][1], lines["/dev/fuse"])
    check("mount" not in lines, "it tried to mount")


@test(mounts_something=False)
def a_root_that_may_not_mount():
    need("setpriv")
    if os.geteuid() != 0:
        skip("needs root to give rights up")
    # Without fusermount3, which would have them as little.
    lines = doctor(before=["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-all", "--"],
                   status=1)
    check(lines["mount"][0] == "missing", lines)


@test(mounts_something=False)
def a_full_disk_is_told():
    need("unshare")
    if os.geteuid() != 0:
        skip("needs root for a disk of its own")
    script = 'mkdir -p "$0" && mount -t tmpfs -o size=50m,mode=0700 none "$0" && exec "$@"'
    lines = doctor(before=["unshare", "-m", "sh", "-c", script, base() + "/cache"])
    equal(lines["cache"][0], "note", "the cache")
    check("not kept" in lines["cache"][1], lines["cache"])


# --- bench ------------------------------------------------------------------

def scans(count):
    os.makedirs(base() + "/scans/deeper", exist_ok=True)
    for i in range(count):
        write_file(base() + "/scans/%s%d.png" % ("deeper/" if i % 2 else "", i), picture(i))
    return base() + "/scans"


def bench(*words, status=0, engine="null:20ms"):
    os.makedirs(base() + "/run", 0o700, exist_ok=True)
    options = "engine=%s,runtime=%s/run" % (engine, base())
    got, out, err = run(OCRFS, "bench", "-o", options, *words, status=None, stderr=True)
    equal(got, status, "exit status, it said %r" % err)
    equal([n for n in os.listdir(base()) if "trial" in n], [], "left in the temporary folder")
    return out.decode(), err.decode()


@test
def bench_prints_a_table_of_times():
    out, err = bench(scans(12))
    equal(err, "", "errors")
    lines = out.splitlines()
    check("null" in lines[0] and "12 images of " + base() in lines[0], lines[0])
    rows = [l for l in lines if l.startswith("| ") and not l.startswith(("| what", "| ---"))]
    equal(len(rows), 5, "rows of " + out)
    for row in rows:
        check(re.fullmatch(r"\| [^|]+ \| [0-9.]+( (s|ms|µs))?( \([^|]*\))? \|", row), row)
    # A page takes 20 ms: no row may say less, and known texts take less.
    alone = [r for r in rows if "nothing else" in r][0]
    value, unit = re.search(r"\| ([0-9.]+) (s|ms|µs)", alone).groups()
    check(float(value) * {"s": 1e3, "ms": 1, "µs": 1e-3}[unit] >= 20, alone)


@test
def bench_names_what_failed():
    folder = scans(4)
    write_file(folder + "/bad.png", b"no image")
    out, err = bench(folder, status=1)
    check("bad.png.md: Bad message" in err, err)
    check("a known text" in out, out)


@test
def bench_has_samples_of_its_own():
    out, err = bench()
    check("images of " in out and err == "", out + err)


@test
def bench_of_nothing():
    os.mkdir(base() + "/empty")
    check("no images" in bench(base() + "/empty", status=1)[1], "empty folder")
    bench(base() + "/nowhere", status=2)
    bench("a", "b", status=2)
    check("engine" in bench(scans(1), status=1, engine="nonsense")[1], "wrong option")


main()
