#!/usr/bin/env python3
"""`ocrfs model`: fetching from a server that cuts, lies and redirects, copying,
checking."""
import os
import sys
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from harness import *
from hub import Hub

MODEL = os.path.join(DATA, "tiny-reader")
REPO = "somebody/tiny-reader"
SHARD = "model-00001-of-00002.safetensors"

os.environ.pop("OCRFS_MODEL", None)


def wanted():
    return sorted(n for n in os.listdir(MODEL) if n.endswith((".json", ".safetensors")))


def home():
    os.environ["XDG_DATA_HOME"] = os.environ["OCRFS_TEST_DIR"] + "/data"
    return os.environ["XDG_DATA_HOME"] + "/ocrfs/models"


def model(*words, status=0, hub=None, limit=120, path=None):
    """(output, errors) of `ocrfs model`."""
    home()
    env = dict(os.environ, HF_ENDPOINT=hub.url if hub else "http://127.0.0.1:9")
    for name in [n for n in env if n.lower().endswith("_proxy")]:
        del env[name]
    if path:
        env["PATH"] = path
    got, out, err = run(OCRFS, "model", *words, status=None, stderr=True, env=env, limit=limit)
    equal(got, status, "exit status; it said: %r" % (out + err))
    return out.decode(), err.decode()


def is_whole(folder):
    equal(sorted(n for n in os.listdir(folder)), sorted([*wanted(), "SHA256SUMS"]), "files")
    for name in wanted():
        check(read_file(os.path.join(folder, name)) == read_file(os.path.join(MODEL, name)),
              "other content: " + name)
    run("sha256sum", "--quiet", "-c", "SHA256SUMS", cwd=folder)


@test(mounts_something=False)
def fetch_list_check_and_read_with_it():
    need("curl")
    hub = Hub(MODEL, REPO)
    out, err = model("fetch", REPO, hub=hub)
    equal((out, err), (home() + "/tiny-reader is ready\n", ""), "output")
    is_whole(home() + "/tiny-reader")
    check(home() + "/tiny-reader" in model("list")[0], "not listed")
    check("%d files have the content" % len(wanted()) in model("check")[0], model("check")[0])
    # It is found, and loaded.
    runtime = os.environ["OCRFS_TEST_DIR"] + "/run"
    doctor = run(OCRFS, "doctor", "--runtime", runtime, "--cache", "memory", "--device", "cpu",
                 status=None).decode()
    check(re.search(r"^ok +model +%s" % re.escape(home() + "/tiny-reader"), doctor, re.M), doctor)
    # Once is enough.
    before = len(hub.requests)
    check("is there already" in model("fetch", REPO, hub=hub, status=1)[1], "again")
    equal(len(hub.requests), before, "requests")


@test(mounts_something=False)
def a_cut_transfer_goes_on_where_it_stopped():
    need("curl")
    hub = Hub(MODEL, REPO)
    hub.cut = 3 << 20
    model("fetch", REPO, hub=hub)
    is_whole(home() + "/tiny-reader")
    starts = [int(r[6:].split("-")[0]) for path, r in hub.requests if r and path.startswith("/cdn")
              and SHARD in path]
    check(len(starts) >= 4 and starts == sorted(set(starts)), "ranges: %r" % starts)
    check(all(s % (3 << 20) == 0 for s in starts), "ranges: %r" % starts)


@test(mounts_something=False)
def what_came_before_a_failure_is_kept():
    need("curl")
    hub = Hub(MODEL, REPO)
    os.makedirs(home())
    # From another day: half of a file, and the server is gone in the middle.
    part = home() + "/.tiny-reader.part"
    os.mkdir(part)
    half = read_file(os.path.join(MODEL, SHARD))[:5000000]
    write_file(os.path.join(part, SHARD), half)
    check("begun" not in model("list")[0] and "tiny-reader" not in model("list")[0], "is listed")
    model("fetch", REPO, hub=hub)
    is_whole(home() + "/tiny-reader")
    check(("/cdn/" + SHARD, "bytes=5000000-") in hub.requests, "requests: %r" % hub.requests)
    check(not os.path.exists(part), "the folder of before is left")


@test(mounts_something=False)
def half_of_another_version_is_fetched_anew():
    need("curl")
    hub = Hub(MODEL, REPO)
    part = home() + "/.tiny-reader.part"
    os.makedirs(part)
    write_file(os.path.join(part, SHARD), b"\0" * 5000000)
    write_file(os.path.join(part, "tokenizer.json"), b"longer" * 100000)
    model("fetch", REPO, hub=hub)
    is_whole(home() + "/tiny-reader")


@test(mounts_something=False)
def servers_that_know_no_ranges_or_are_busy():
    need("curl")
    hub = Hub(MODEL, REPO)
    hub.ranges, hub.busy = False, 2
    hub.cut, hub.cuts = 3 << 20, 3
    model("fetch", REPO, hub=hub)
    is_whole(home() + "/tiny-reader")


def refuses(hub, words, left=()):
    """fetch must fail and say `words`; what is left of it is hidden."""
    err = model("fetch", REPO, hub=hub, status=1)[1]
    equal(err.count("\n"), 1, "lines of %r" % err)
    for word in words:
        check(word in err, "%r is not in %r" % (word, err))
    check(not os.path.exists(home() + "/tiny-reader"), "the model is there")
    part = home() + "/.tiny-reader.part"
    equal(sorted(os.listdir(part)) if os.path.exists(part) else [], sorted(left), "left")


@test(mounts_something=False)
def other_content_than_was_announced():
    need("curl")
    hub = Hub(MODEL, REPO)
    data = bytearray(read_file(os.path.join(MODEL, SHARD)))
    data[1000000] ^= 1
    hub.changed = {SHARD: bytes(data)}
    refuses(hub, [SHARD, "SHA-256", "deleted"], [n for n in wanted() if n < SHARD])
    hub.changed = {}
    model("fetch", REPO, hub=hub)
    is_whole(home() + "/tiny-reader")


@test(mounts_something=False)
def longer_or_shorter_than_was_announced():
    need("curl")
    hub = Hub(MODEL, REPO)
    hub.changed = {"config.json": read_file(os.path.join(MODEL, "config.json")) + b" " * 9000000}
    refuses(hub, ["config.json", "longer"])
    hub.changed = {"config.json": b"{}"}
    refuses(hub, ["config.json", "too little"], ["config.json"])


@test(mounts_something=False)
def without_digests_the_engine_finds_what_is_wrong():
    need("curl")
    hub = Hub(MODEL, REPO)
    hub.bare = True
    data = bytearray(read_file(os.path.join(MODEL, SHARD)))
    data[20] ^= 0x55  # in the header
    hub.changed = {SHARD: bytes(data)}
    refuses(hub, [SHARD], [*wanted(), "SHA256SUMS"])


@test(mounts_something=False)
def listings_that_are_none():
    need("curl")
    for more, words in (([{"type": "file", "path": "huge.json", "size": 1 << 60}], ["too large"]),
                        ([{"type": "file", "path": "x.json", "size": "1"}], ["no size of x.json"]),
                        ([{"type": "file", "path": "y.json", "size": 7,
                           "lfs": {"oid": "zz"}}], ["digest of y.json"]),
                        ([{"type": "file", "path": "n%d.json" % i, "size": 7} for i in range(99)],
                         ["too many files"])):
        hub = Hub(MODEL, REPO)
        hub.more = more
        refuses(hub, words)
    hub = Hub(os.path.join(DATA, "samples"), REPO)
    refuses(hub, ["no model", "config.json"])
    hub.listing = lambda: b"<html>sign in</html>"
    refuses(hub, ["no listing", "HF_ENDPOINT"])
    refuses(Hub(MODEL, "another/one"), ["404"])


@test(mounts_something=False)
def names_that_lead_elsewhere_are_left_out():
    need("curl")
    hub = Hub(MODEL, REPO)
    hub.more = [{"type": "file", "path": name, "size": 5} for name in
                ("../evil.json", "/etc/evil.json", ".evil.json", "a/evil.json", "e vil.json",
                 "evil\x1b[2J.json", "evil.sh", "evil.json/")] + [7, None, {"type": "file"}]
    model("fetch", REPO, hub=hub)
    is_whole(home() + "/tiny-reader")
    check(not [r for r in hub.requests if "evil" in r[0]], "asked for: %r" % hub.requests)


@test(mounts_something=False)
def no_server_no_curl_and_wrong_use():
    need("curl")
    err = model("fetch", REPO, status=1)[1]
    check("127.0.0.1" in err and err.count("\n") == 1, "no server: %r" % err)
    empty = os.environ["OCRFS_TEST_DIR"] + "/empty"
    os.mkdir(empty)
    check("curl is not installed" in model("fetch", REPO, status=1, path=empty)[1], "no curl")
    check("did you mean LightOnOCR-2-1B?" in model("fetch", "LightOnOCR-2", status=2)[1], "near")
    for bad in ("../x", "a/../b", "a/b/c", "/a", "a/", "a/.b", "a b/c"):
        check("there is no model" in model("fetch", bad, status=2)[1], bad)
    for words in ((), ("fetch",), ("add",), ("steal", "x"), ("check", "--colour")):
        model(*words, status=2)
    check("no model here" in model("check", status=1)[1], "check without any")
    check("LightOnOCR-2-1B " in model("list")[0], "list")


@test(mounts_something=False)
def two_at_once_take_turns():
    home()
    part = home() + "/.tiny-reader.part"
    os.makedirs(part)
    fd = os.open(part, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    check("another process" in model("add", MODEL, status=1)[1], "while it is locked")
    os.close(fd)
    model("add", MODEL)
    is_whole(home() + "/tiny-reader")


@test(mounts_something=False)
def add_copies_what_links_lead_to_and_check_finds_damage():
    # As Hugging Face's own cache has it.
    snapshot = os.environ["OCRFS_TEST_DIR"] + "/snapshots/tiny-reader"
    os.makedirs(snapshot)
    for name in wanted():
        os.symlink(os.path.join(MODEL, name), os.path.join(snapshot, name))
    model("add", snapshot)
    folder = home() + "/tiny-reader"
    is_whole(folder)
    check(not any(os.path.islink(os.path.join(folder, n)) for n in os.listdir(folder)), "links")
    model("check", "tiny-reader")
    model("check", folder)
    for name, at in ((SHARD, -1), ("config.json", 2), ("tokenizer.json", 100000)):
        path = os.path.join(folder, name)
        good = read_file(path)
        bad = bytearray(good)
        bad[at] ^= 1
        write_file(path, bytes(bad))
        err = model("check", status=1)[1]
        check(folder in err and err.count("\n") == 1, "%s: %r" % (name, err))
        write_file(path, good[:-100])
        model("check", status=1)
        write_file(path, good)
    model("check")


main()
