#!/usr/bin/env python3
"""The model behind the mount: pages through `cat` and `ocrfs read`, which model
is taken, what is kept beside what, and folders that are no good."""
import os
import re
import struct
import sys
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from harness import *
from scans import *

MODEL = os.path.join(DATA, "tiny-reader")
PAGES = os.path.join(MODEL, "pages")
SHARD = "model-00001-of-00002.safetensors"

os.environ.pop("OCRFS_MODEL", None)
os.environ.pop("XDG_DATA_HOME", None)


def base():
    return os.environ["OCRFS_TEST_DIR"]


def pages():
    """Paths of the sample pages, the small ones first."""
    return [os.path.join(PAGES, n) for n in sorted(os.listdir(PAGES)) if n.endswith(".png")]


def add(m, path):
    """The page in SOURCE; its name there."""
    name = os.path.basename(path)
    m.add(name, data=read_file(path))
    return name


def lighton(*options, model=MODEL, **kwargs):
    return Mount("model=" + model, *options, engine="lighton", **kwargs)


def own(*more, model=MODEL, cache="memory"):
    """Arguments of the other commands that keep to the test's own folders."""
    os.makedirs(base() + "/run", 0o700, exist_ok=True)
    return ["--runtime", base() + "/run", "--cache", cache,
            *(["--model", model] if model else []), *more]


def read(*paths, more=(), model=MODEL, **kwargs):
    return run(OCRFS, "read", *own(*more, model=model), *paths, **kwargs)


def copy_of_model(name="model", parent=None):
    """The folder with its weights as links; what is changed is written anew."""
    folder = os.path.join(parent or base(), name)
    os.makedirs(folder)
    for one in os.listdir(MODEL):
        if not one.startswith("pages"):
            os.symlink(os.path.join(MODEL, one), os.path.join(folder, one))
    return folder


def rewrite(folder, name, change):
    path = os.path.join(folder, name)
    data = change(read_file(path))
    os.unlink(path)
    write_file(path, data)


def other_version(folder):
    """The same weights, so the same text, but not the same bytes."""
    rewrite(folder, "generation_config.json", lambda data: data + b"\n")


def ticks(pids):
    """Processor time of these processes and their children."""
    total = 0
    for pid in set(pids) | {p for pid in pids for p in descendants(pid)}:
        with contextlib.suppress(OSError):
            fields = read_file("/proc/%d/stat" % pid).rsplit(b")", 1)[1].split()
            total += int(fields[11]) + int(fields[12])
    return total


# --- reading ----------------------------------------------------------------

@test(limit=180)
def cat_gets_what_read_prints():
    with lighton() as m:
        texts = {}
        for path in pages():
            texts[add(m, path)] = read(path)
        check(len(texts) >= 12 and len(set(texts.values())) == len(texts), "different texts")
        for name, text in texts.items():
            check(text.strip(), "no text of " + name)
            equal(run("cat", m.text(name)), text, "text of " + name)
            equal(os.stat(m.text(name)).st_size, len(text), "size of " + name)
        engine = m.status()["engine"]
        check(engine["version"].startswith("lighton "), engine["version"])
        check("MiB" in engine["details"], engine["details"])
        equal(m.status()["model"], MODEL, "model in the status")
        people = read_file(os.path.join(m.path, ".ocrfs/status")).decode()
        check(re.search("^model +%s$" % re.escape(MODEL), people, re.M), people)
        equal(pages_read(m), len(texts), "pages read")


@test(limit=120)
def many_at_once_get_the_same_texts():
    names = [os.path.basename(p) for p in pages()[:9]]
    single = {n: read(os.path.join(PAGES, n)) for n in names}
    with lighton() as m:
        for n in names:
            add(m, os.path.join(PAGES, n))
        readers = Readers(m, names * 3)
        readers.join(90)
        for name, status, out, err in readers.results():
            equal((status, err), (0, b""), "reader of " + name)
            equal(out, single[name], "text of " + name)
        equal(pages_read(m), len(names), "pages read")


def rows(text):
    """The cells of the rows of tables, without what lines them up."""
    cells = [[c.strip() for c in line.strip().strip(b"|").split(b"|")]
             for line in text.splitlines() if line.startswith(b"|")]
    return [r for r in cells if not all(re.fullmatch(rb":?-+:?", c) for c in r)]


@test(limit=120, mounts_something=False)
def tables_lined_up_or_as_the_model_wrote_them():
    path = pages()[-1]
    pipe, html = read(path), read(path, more=["--tables", "html"])
    check(len(rows(pipe)) > 3, "no table in %r" % pipe)
    # This model writes pipes itself, and does not line them up.
    check(pipe != html, "tables=html changes nothing")
    for short, long in zip(rows(html), rows(pipe)):
        equal(long[:len(short)], short, "a row")
    first = [x for x in pipe.splitlines() if x.startswith(b"|")]
    equal(len(set(map(len, first[:4]))), 1, "widths of rows of %r" % first[:4])
    check(b"-: |" in pipe, "no column of numbers in %r" % pipe)
    check(b"-: |" not in html, html)


# --- which model --------------------------------------------------------------

@test
def auto_finds_a_model():
    page = pages()[0]
    want = read(page)
    named = copy_of_model("named")
    share = base() + "/share"
    copy_of_model("b-model", share + "/ocrfs/models")
    os.makedirs(share + "/ocrfs/models/a-empty")
    for env, found in (({"OCRFS_MODEL": named}, named),
                       ({"XDG_DATA_HOME": share}, share + "/ocrfs/models/b-model"),
                       ({"OCRFS_MODEL": named, "XDG_DATA_HOME": share}, named)):
        env = dict(os.environ, **env)
        equal(read(page, model=None, env=env), want, "with %s" % found)
        out = run(OCRFS, "doctor", *own(model=None), env=env, status=None).decode()
        check(re.search(r"^ok +model +%s$" % re.escape(found), out, re.M), out)
        check(re.search(r"^ok +recogniser +lighton .*bf16.*MiB.*pages at once$", out, re.M), out)
        with Mount(engine="auto", env=env) as m:
            equal(run("cat", m.text(add(m, page))), want, "through the mount")


@test(mounts_something=False)
def doctor_says_where_it_looked():
    out = run(OCRFS, "doctor", *own(model=None), status=None).decode()
    check(re.search(r"^note +model +none, texts come from tesseract", out, re.M), out)
    looked = re.search(r"^note +looked at +(.*)$", out, re.M)
    check(looked, out)
    for place in ("$OCRFS_MODEL (not set)", base() + "/home/.local/share/ocrfs/models",
                  "/usr/share/ocrfs/models"):
        check(place in looked[1], looked[1])


@test(mounts_something=False)
def doctor_says_what_is_wrong_with_a_folder():
    folder = copy_of_model()
    rewrite(folder, SHARD, lambda data: data[:-5])
    status, out, _ = run(OCRFS, "doctor", *own(model=folder), status=None, stderr=True)
    equal(status, 1, "exit status")
    line = re.search(r"^missing +recogniser +(.*)$", out.decode(), re.M)
    check(line, out)
    for words in (folder, SHARD, "model=DIR", "engine=tesseract"):
        check(words in line[1], line[1])


@test(mounts_something=False)
def a_model_named_by_the_environment_is_never_passed_over():
    page = pages()[0]
    env = dict(os.environ, OCRFS_MODEL=base() + "/nowhere")
    status, out, err = read(page, model=None, env=env, status=None, stderr=True)
    equal((status, out), (2, b""), "exit status and output")
    check((base() + "/nowhere").encode() in err, err)
    env = dict(os.environ, OCRFS_MODEL="models/mine")
    status, _, err = read(page, model=None, env=env, status=None, stderr=True)
    equal(status, 2, "exit status")
    check(b"OCRFS_MODEL" in err and b"begin with /" in err, err)


@test(mounts_something=False)
def no_model_at_all():
    status, out, err = read(pages()[0], model=None, more=["--engine", "lighton"], status=None,
                            stderr=True)
    equal((status, out), (2, b""), "exit status and output")
    check(b"model=DIR" in err and b"/usr/share/ocrfs/models" in err, err)


@test(mounts_something=False)
def a_folder_that_is_no_model_never_prints_what_another_made():
    page = pages()[0]
    cache = base() + "/cache"
    want = run(OCRFS, "read", *own(cache=cache), page)
    write_file(base() + "/file", b"")
    for folder, words in ((base(), b"config.json"), (base() + "/file", b"no folder"),
                          (base() + "/nowhere", b"No such file")):
        status, out, err = run(OCRFS, "read", *own(cache=cache, model=folder), page,
                               status=None, stderr=True)
        equal((status, out), (2, b""), "exit status and output (%r)" % err)
        check(folder.encode() in err and words in err, err)
        equal(err.count(b"\n"), 1, "lines of %r" % err)
    equal(run(OCRFS, "read", *own(cache=cache), page), want, "the right one afterwards")


# --- what is kept ---------------------------------------------------------------

@test(limit=120)
def a_text_of_the_model_is_not_replaced_by_one_of_tesseract():
    page = pages()[4]
    want = read(page)
    m = lighton()
    with m:
        name = add(m, page)
        equal(run("cat", m.text(name)), want, "the model's")
    shared = {"source": m.source, "cache": m.cache, "runtime": m.runtime}
    with Mount(engine="tesseract", **shared) as t:
        equal(os.stat(t.text(name)).st_size, len(want), "size")
        equal(run("cat", t.text(name)), want, "still the model's")
        equal(pages_read(t), 0, "pages read by tesseract")
    with lighton(**shared) as again:
        equal(run("cat", again.text(name)), want, "and again")
        equal(pages_read(again), 0, "pages read again")


@test(limit=120)
def a_text_of_tesseract_gives_way_to_one_of_the_model():
    page = pages()[4]
    want = read(page)
    m = Mount(engine="tesseract")
    with m:
        name = add(m, page)
        poor = run("cat", m.text(name))
        check(poor != want, "tesseract reads as the model does")
    shared = {"source": m.source, "cache": m.cache, "runtime": m.runtime}
    with lighton(**shared) as better:
        equal(run("cat", better.text(name)), want, "the model's")
        equal(pages_read(better), 1, "pages read")
    with Mount(engine="tesseract", **shared) as t:
        equal(run("cat", t.text(name)), poor, "its own was not lost")
        equal(pages_read(t), 0, "pages read by tesseract")


@test(limit=120)
def settings_have_texts_of_their_own():
    page = pages()[3]
    m = lighton()
    with m:
        name = add(m, page)
        whole = run("cat", m.text(name))
    shared = {"source": m.source, "cache": m.cache, "runtime": m.runtime}
    others = ["precision=int8", "max_tokens=5", "temperature=1.5", "repetition_penalty=1.3",
              "temperature=1.5,top_p=0.5", "tables=html", "patch_multiple=14"]
    texts = {}
    for options in others:
        with lighton(options, allow=["was cut"], **shared) as o:
            texts[options] = run("cat", o.text(name))
            equal(pages_read(o), 1, "pages read with " + options)
    check(whole.startswith(texts["max_tokens=5"][:-1]), "five tokens: %r" % texts["max_tokens=5"])
    check(len(texts["max_tokens=5"]) < len(whole), "five tokens are as many as all")
    for options in others + ["tables=pipe"]:
        with lighton(options, **shared) as o:
            equal(run("cat", o.text(name)), texts.get(options, whole), "kept for " + options)
            equal(pages_read(o), 0, "pages read again with " + options)


@test(limit=120)
def another_version_of_the_model():
    page = pages()[1]
    folder = copy_of_model()
    m = lighton(model=folder)
    with m:
        name = add(m, page)
        want = run("cat", m.text(name))
    other_version(folder)
    # The engine still holds what it has loaded; a new one sees the new folder.
    shared = {"source": m.source, "cache": m.cache, "model": folder}
    with lighton("stale=serve", **shared) as serve:
        equal(run("cat", serve.text(name)), want, "the old one is served")
        equal(pages_read(serve), 0, "pages read with stale=serve")
    for made in (1, 0):  # kept, the second time
        with lighton("stale=redo", **shared) as redo:
            equal(run("cat", redo.text(name)), want, "made again")
            equal(pages_read(redo), made, "pages read with stale=redo")


# --- what goes wrong ----------------------------------------------------------

@test
def a_broken_folder_leaves_the_mount_useful():
    folder = copy_of_model()
    m = lighton(model=folder)
    with m:
        known = add(m, pages()[0])
        want = run("cat", m.text(known))
    rewrite(folder, SHARD, lambda data: data[:100000])
    broken = lighton(model=folder, source=m.source, cache=m.cache, allow=[SHARD, "engine-gone", "known texts are served"])
    with broken:
        fresh = add(broken, pages()[1])
        equal(run("cat", broken.text(known)), want, "a known text")
        equal(read_file(broken.at(fresh)), read_file(pages()[1]), "an original")
        for _ in range(3):
            fails(errno.EIO, open, broken.text(fresh))
        said = [x for x in broken.log().splitlines() if "no engine" in x]
        equal(len(said), 1, "lines about it in %r" % broken.log())
        check(folder in said[0] and SHARD in said[0], said[0])
        check(SHARD in broken.status()["engine"]["trouble"], broken.status()["engine"])
        # Once the folder is whole again, so is the mount, with the next text
        # that nobody has asked for yet.
        os.unlink(os.path.join(folder, SHARD))
        os.symlink(os.path.join(MODEL, SHARD), os.path.join(folder, SHARD))
        for i in (2, 1):
            equal(run("cat", broken.text(add(broken, pages()[i]))), read(pages()[i]),
                  "a text afterwards")


@test(limit=120)
def the_engine_is_killed_among_pages():
    names = [os.path.basename(p) for p in pages()[3:9]]
    single = {n: read(os.path.join(PAGES, n)) for n in names}
    with lighton(allow=["engine"]) as m:
        for n in names:
            add(m, os.path.join(PAGES, n))
        readers = Readers(m, names)
        wait_for(lambda: m.status()["queue"]["running"] > 0, "pages in the engine")
        pid = wait_for(m.engine_pids, "an engine")[0]
        os.kill(pid, signal.SIGKILL)
        readers.join(90)
        for name, status, out, err in readers.results():
            equal((status, err), (0, b""), "reader of " + name)
            equal(out, single[name], "text of " + name)
        check(pid not in m.engine_pids(), "it lives")


@test(limit=90, mounts_something=False)
def an_interrupted_read_frees_the_engine():
    first = read(pages()[0])  # the engine is there from now on
    # Nonsense until the limit: some 20 s.
    p = start(OCRFS, "read", *own("--temperature", "2"), *pages()[-3:])
    time.sleep(1.5)
    engines = [x for x in descendants(int(os.environ["OCRFS_TEST_RUNNER"]))
               if name_of(x) == "ocrfs-engine"]
    check(p.poll() is None, "it was done too soon to be interrupted")
    before = ticks(engines)
    p.send_signal(signal.SIGINT)
    p.wait(5)
    begun = time.monotonic()
    equal(read(pages()[0]), first, "a page afterwards")
    check(time.monotonic() - begun < 5, "the next page waited")
    check(before > 20, "the engine did not work")
    used = ticks(engines)
    time.sleep(1)
    check(ticks(engines) - used <= 5, "the engine works on: %d ticks" % (ticks(engines) - used))


def name_of(pid):
    with contextlib.suppress(OSError):
        return os.path.basename(os.readlink("/proc/%d/exe" % pid))
    return ""


@test
def limits_are_said_once():
    short, longer = pages()[0], pages()[3]
    with lighton("max_tokens=4", allow=["was cut"]) as m:
        name = add(m, longer)
        for _ in range(3):
            run("cat", m.text(name))
        said = [x for x in m.log().splitlines() if "was cut" in x]
        equal(len(said), 1, "lines")
        check(m.source + "/" + name in said[0] and "max_tokens" in said[0], said[0])
    with lighton("max_tokens=1000000", allow=["max_tokens was lowered"]) as m:
        names = [add(m, short), add(m, longer)]
        for name in names:
            equal(run("cat", m.text(name)), read(os.path.join(PAGES, name)), "text of " + name)
        said = [x for x in m.log().splitlines() if "lowered" in x]
        equal(len(said), 1, "lines")
        check(m.source + "/" + names[0] in said[0], said[0])
    _, _, err = read(longer, more=["--max_tokens", "4"], stderr=True)
    equal(err.count(b"was cut"), 1, "lines of read")
    # More than the engine is loaded for by default, but not more than there is
    # room for: nothing to say.
    _, _, err = read(short, more=["--max_tokens", "5000"], stderr=True)
    equal(err, b"", "what read says")


# --- hostile folders ------------------------------------------------------------

def header_of(data):
    size, = struct.unpack("<Q", data[:8])
    return json.loads(data[8:8 + size]), data[8 + size:]


def shard(header, body):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def with_tensor(change):
    """Changes one tensor's entry of a file; its name is what must be said."""
    def on(data):
        header, body = header_of(data)
        change(header, TENSOR)
        return shard(header, body)
    return on


TENSOR = sorted(n for n in header_of(read_file(os.path.join(MODEL, SHARD)))[0]
                if n.endswith("proj.weight"))[0]


def offsets(function):
    def change(header, name):
        header[name]["data_offsets"] = function(*header[name]["data_offsets"])
    return with_tensor(change)


def put(key, value):
    return with_tensor(lambda header, name: header[name].update({key: value}))


HOSTILE = [
    ("a file that is cut in its data", SHARD, lambda d: d[:len(d) // 2], []),
    ("a file that is cut in its header", SHARD, lambda d: d[:1000], []),
    ("a file of three bytes", SHARD, lambda d: d[:3], []),
    ("an empty file", SHARD, lambda d: b"", []),
    ("bytes behind the last tensor", SHARD, lambda d: d + bytes(4096), []),
    ("a header of 4 GiB", SHARD, lambda d: struct.pack("<Q", 4 << 30) + d[8:], []),
    ("a header of 2^64 - 1 bytes", SHARD, lambda d: b"\xff" * 8 + d[8:], []),
    ("a tensor past the end", SHARD, offsets(lambda a, b: [a + (1 << 40), b + (1 << 40)]),
     [TENSOR]),
    ("negative offsets", SHARD, offsets(lambda a, b: [a - b, 0]), [TENSOR]),
    ("offsets the wrong way round", SHARD, offsets(lambda a, b: [b, a]), [TENSOR]),
    ("tensors that overlap", SHARD, offsets(lambda a, b: [a - 64, b - 64] if a else
                                            [a + 64, b + 64]), ["tensor"]),
    ("a type that is none", SHARD, put("dtype", "Q7"), [TENSOR, "Q7"]),
    ("a type that is not read", SHARD, put("dtype", "I16"), [TENSOR, "I16"]),
    ("a shape of another size", SHARD, put("shape", [3, 5]), [TENSOR]),
    ("a shape that overflows", SHARD, put("shape", [1 << 62, 1 << 62]), [TENSOR]),
    ("a tensor that is missing", SHARD,
     with_tensor(lambda header, name: header.__setitem__("other", header.pop(name))),
     [TENSOR]),
    ("deep JSON", SHARD, lambda d: struct.pack("<Q", 200000) + b"[" * 200000 + d, []),
    ("a header that is no JSON", SHARD, lambda d: d[:8] + b"\xff\x00" + d[10:], []),
    ("deep JSON in the configuration", "config.json", lambda d: b'{"a":' * 100000, []),
    ("an index that names itself", "model.safetensors.index.json",
     lambda d: d.replace(SHARD.encode(), b"model.safetensors.index.json"), []),
    ("an index that leads out of the folder", "model.safetensors.index.json",
     lambda d: d.replace(SHARD.encode(), b"../" + SHARD.encode()), []),
    ("an index that names no file", "model.safetensors.index.json",
     lambda d: d.replace(SHARD.encode(), b"gone.safetensors"), ["gone.safetensors"]),
    ("a tokenizer that is cut", "tokenizer.json", lambda d: d[:5000], []),
]


@tests(HOSTILE, mounts_something=False)
def hostile_folder(name, change, words):
    folder = copy_of_model()
    rewrite(folder, name, change)
    status, out, err = read(pages()[0], model=folder, status=None, stderr=True)
    equal((status, out), (2, b""), "exit status and output (%r)" % err)
    check(err.decode().replace("\n", "").isprintable(), err)
    line = err.decode().splitlines()[0]
    for word in [folder, name, *words]:
        check(word in line, "%s is not in: %s" % (word, line))


@test(mounts_something=False)
def other_things_in_the_place_of_files():
    for name, make in ((SHARD, os.mkfifo), (SHARD, os.mkdir), ("config.json", os.mkfifo),
                       (SHARD, lambda p: os.symlink("/dev/zero", p)),
                       (SHARD, lambda p: os.symlink(p, p))):
        folder = copy_of_model("m%d" % time.monotonic_ns())
        path = os.path.join(folder, name)
        os.unlink(path)
        make(path)
        status, out, err = read(pages()[0], model=folder, status=None, stderr=True)
        equal((status, out), (2, b""), "exit status and output (%r)" % err)
        check(folder.encode() in err and name.encode() in err, err)


main()
