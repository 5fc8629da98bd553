#!/usr/bin/env python3
"""Mounts on GPUs that are played (tests/plugin/played.h): what is read, and what
becomes of pages and mounts when a GPU fails."""
import os
import sys
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from harness import *
from scans import *

MODEL = os.path.join(DATA, "tiny-reader")
PLUGIN = os.path.join(BUILD, "tests", "plugin")
PAGES = os.path.join(MODEL, "pages")
GUILTY = "guilty.png"
NAN, HANG, LOST = 1, 2, 3
# On a machine with a GPU: the plugin that the played one stands before.
OVER = os.environ.get("OCRFS_PLAYED_OVER")
# What is said when an engine ends that must.
DEATH = ["the engine( on cuda:\\d)? (lost its device|was killed|crashed)"]

os.environ.pop("OCRFS_MODEL", None)


def base():
    return os.environ["OCRFS_TEST_DIR"]


class Gpu(Mount):
    """A mount whose engine finds cards that do what tell() says."""

    def __init__(self, *options, device="cuda", **kwargs):
        folder = os.path.join(base(), "bin")
        if not os.path.exists(folder):
            os.mkdir(folder)
            for path in (OCRFS, os.path.join(BUILD, "ocrfs-engine"),
                         os.path.join(PLUGIN, "ocrfs-cuda.so"),
                         *([] if OVER else [os.path.join(PLUGIN, "libcuda.so.1")])):
                shutil.copy2(path, folder)
        self.told = os.path.join(folder, "told")
        env = dict(LD_LIBRARY_PATH=":".join([folder, os.environ.get("LD_LIBRARY_PATH", "")]),
                   OCRFS_PLAYED=self.told)
        super().__init__("model=" + MODEL, "device=" + device, *options, engine="lighton",
                         env=env, ocrfs=os.path.join(folder, "ocrfs"), **kwargs)
        self.tell()

    def tell(self, **words):
        words.setdefault("slots", 8)
        with open(self.told + ".new", "w") as f:
            f.write(" ".join("%s=%d" % w for w in words.items()))
        os.rename(self.told + ".new", self.told)

    def fault(self, kind, **more):
        width, height = size_of(read_file(os.path.join(self.source, GUILTY)))
        self.tell(fault=kind, fault_tokens=width // 28 * (height // 28), **more)


def pages():
    """Names of the smallest of the model's pages; no two have one size."""
    sizes = {}
    for name in sorted(os.listdir(PAGES)):
        if name.endswith(".png"):
            sizes.setdefault(name.split("-")[-1], name)
    return sorted(sizes.values())[:5]


def add_pages(m, guilty=2):
    """The pages in SOURCE, one of them under the name of GUILTY; their names."""
    names = []
    for i, name in enumerate(pages()):
        names.append(GUILTY if i == guilty else name)
        m.add(names[-1], data=read_file(os.path.join(PAGES, name)))
    return names


def truth(guilty=2):
    """What the processor reads, or the GPU that is there."""
    os.makedirs(base() + "/run", 0o700, exist_ok=True)
    paths = [os.path.join(PAGES, name) for name in pages()]
    out = run(OCRFS, "read", "--runtime", base() + "/run", "--cache", "memory", "--device",
              "cuda" if OVER else "cpu", "--model", MODEL, *paths)
    texts = re.split(rb"<!-- [^\n]*\.png -->\n", out)[1:]
    equal(len(texts), len(paths), "texts")
    return {GUILTY if i == guilty else name: texts[i].strip(b"\n")
            for i, name in enumerate(pages())}


def right(results, texts, but=()):
    for name, status, out, err in results:
        if name in but:
            equal((status, out), (1, b""), "exit and output for %s" % name)
            check(b"Input/output error" in err, err)
        else:
            equal((status, err), (0, b""), "reader of " + name)
            equal(out.strip(b"\n"), texts[name], "text of " + name)


def text_of(m, name):
    return run("cat", m.text(name)).strip(b"\n")


def ls_times(m, readers):
    """How long `ls -l` took, again and again until the readers are done."""
    times = []
    while readers.alive():
        begin = time.monotonic()
        run("ls", "-l", m.path)
        times.append(time.monotonic() - begin)
        time.sleep(0.1)
    note("ls -l took at most %.3f s in %d tries" % (max(times), len(times)))


@test(limit=60)
def a_gpu_reads_what_the_processor_reads():
    texts = truth()
    with Gpu() as m:
        readers = Readers(m, add_pages(m))
        readers.join(40)
        right(readers.results(), texts)
        engine = m.status()["engine"]
        equal(engine["device"], "cuda:0", "device")
        check("8 pages at once" in engine["details"], engine["details"])


def fault_among_good_pages(kind, deaths, words, **more):
    texts = truth()
    m = Gpu(allow=DEATH + [GUILTY])
    names = add_pages(m)
    m.fault(kind, **more)
    with m:
        readers = Readers(m, names)
        ls_times(m, readers)
        right(readers.results(), texts, [GUILTY])
        lines = lines_with(m, GUILTY)
        equal(len(lines), 1, "lines of the log about it")
        for word in words:
            check(word in lines[0], lines[0])
        equal(m.status()["engine"]["deaths"], deaths, "deaths of the engine")
        fails(errno.EIO, open, m.text(GUILTY))  # known for a minute


def lines_with(m, word):
    return [x for x in m.log().splitlines() if word in x]


@test(limit=60)
def a_page_of_nan_fails_alone():
    fault_among_good_pages(NAN, 0, ["not finite"], fault_at=1)


# Once among the others, once alone.
@test(limit=90)
def a_page_at_which_the_gpu_hangs_fails_alone():
    fault_among_good_pages(HANG, 2, ["the GPU failed on this image", "nothing was finished"])


@test(limit=60)
def a_page_with_a_sticky_error_fails_alone():
    fault_among_good_pages(LOST, 2, ["the GPU failed on this image (cuda:0: "])


@test(limit=90)
def an_engine_that_falls_silent_is_killed():
    texts = truth()
    with Gpu(allow=DEATH + [GUILTY]) as m:
        names = add_pages(m)
        m.fault(0, mute=1)
        readers = Readers(m, names)
        wait_for(lambda: lines_with(m, "lost its device"), "a verdict", 40)
        check("finished nothing for" in lines_with(m, "lost its device")[0], m.log())
        m.tell()
        readers.join(40)
        right(readers.results(), texts)


@test(limit=90)
def a_fault_of_the_card_is_remembered_against_no_page():
    texts = truth()
    m = Gpu(allow=DEATH + [GUILTY, "engine-gone", "no engine"])
    names = add_pages(m)
    m.fault(LOST, device_fault=1)
    with m:
        readers = Readers(m, [GUILTY])
        readers.join(30)
        right(readers.results(), texts, [GUILTY])
        trouble = m.status()["engine"]["trouble"]
        check("error that cannot be corrected" in trouble, trouble)
        m.tell()
        for name in names[:1] + [GUILTY] + names[1:]:
            equal(text_of(m, name), texts[name], "text of " + name)


def not_over_a_gpu():
    if OVER:
        skip("needs two cards, which only a played GPU has everywhere")


def ticks(pid):
    fields = read_file("/proc/%d/stat" % pid).rsplit(b")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


@test(limit=60)
def an_idle_gpu_is_given_back():
    texts = truth()
    with Gpu("gpu_idle=1", "prefetch=off") as m:
        names = add_pages(m)
        for name in names[:2]:
            equal(text_of(m, name), texts[name], "text of " + name)
            pid = m.status()["engine"]["pid"]
            with contextlib.suppress(OSError):
                before = ticks(pid)
                time.sleep(0.5)
                used = ticks(pid) - before
                check(used <= 2, "%d ticks without a page" % used)
            wait_for(lambda: m.status()["engine"]["state"] == "none", "its end")
            wait_for(lambda: state_of(pid) in ("", "Z"), "the end of the process")
        equal(m.status()["engine"]["deaths"], 0, "deaths")


@test(limit=90)
def two_gpus_share_the_pages():
    not_over_a_gpu()
    texts = truth()
    m = Gpu(device="cuda:0,1", allow=DEATH)
    m.tell(slots=2, slow=2000)
    with m:
        names = []
        for i in range(3):  # the same pictures, with something behind them
            for name in add_pages(m):
                names.append("%d-%s" % (i, name))
                m.add(names[-1], data=read_file(m.source + "/" + name) + bytes(i + 1))
        readers = Readers(m, names)

        def both():
            engines = m.status()["engine"]["engines"]
            return all(e["state"] == "ready" and e["running"] for e in engines) and engines
        engines = wait_for(both, "both to have pages")
        equal([e["device"] for e in engines], ["cuda:0", "cuda:1"], "devices")
        equal(len({e["pid"] for e in engines}), 2, "engines")
        os.kill(engines[0]["pid"], signal.SIGKILL)
        readers.join(60)
        right([(n.split("-", 1)[1], *rest) for n, *rest in readers.results()], texts)
        people = read_file(os.path.join(m.path, ".ocrfs/status")).decode()
        check(re.search("^  on cuda:1 .* ready", people, re.M), people)


@test(limit=60)
def one_gpu_of_two_reads_alone():
    not_over_a_gpu()
    texts = truth()
    with Gpu(device="cuda:7,0", allow=["no engine on cuda:7"]) as m:
        names = add_pages(m)
        readers = Readers(m, names)
        readers.join(50)
        right(readers.results(), texts)
        trouble = [e["trouble"] for e in m.status()["engine"]["engines"]]
        check("there is no GPU with this number" in trouble[0] and not trouble[1], trouble)


@test(limit=60)
def doctor_prints_the_memory_of_each_gpu():
    not_over_a_gpu()
    m = Gpu()
    m.tell(slots=64)
    args = ["--runtime", m.runtime, "--cache", "memory", "--device", "cuda:0,1", "--model", MODEL]
    out = run(m.ocrfs, "doctor", *args, env=m.env).decode()
    for number in (0, 1):
        check(re.search(r"^ok +GPU +played GPU, cuda:%d$" % number, out, re.M), out)
        check(re.search(r"^ok +GPU %d memory +played GPU: weights 0.02 GiB, workspace [0-9.]+, "
                        r"KV [0-9.]+: 64 A4 pages at once" % number, out, re.M), out)
    check("141 GB" not in out, out)
    out = run(m.ocrfs, "doctor", "--gpu-sizes", *args, env=m.env).decode()
    equal(re.findall(r"^ok +(\d+) GB .*weights", out, re.M), ["16", "24", "32", "40", "80", "141"],
          "sizes")
    m.tell(slots=64, memory=30)
    out = run(m.ocrfs, "doctor", *args, env=m.env, status=None).decode()
    check(re.search(r"^note +GPU 1 memory +.* has 0.0 GiB .* needs 0.[0-9]", out, re.M), out)


@test(limit=90, mounts_something=False)
def the_plugin_plans_for_cards_that_are_not_there():
    need(os.path.join(BUILD, "ocrfs-cuda.so"))
    folder = base() + "/full"
    run(sys.executable, os.path.join(ROOT, "tests/bench/full_model.py"), folder, "-")
    out = run(os.path.join(BUILD, "ocrfs-engine"), "--recogniser", "lighton", "--model", folder,
              "--gpu-sizes").decode()
    pages = {int(gb): int(n) for gb, n in
             re.findall(r"^ok\t(\d+) GB\t.*: (\d+) A4 pages at once", out, re.M)}
    equal(pages, {16: 14, 24: 24, 32: 34, 40: 44, 80: 64, 141: 64}, "A4 pages at once")


@test(limit=90)
def a_gpu_that_is_gone_is_not_replaced_by_the_processor():
    texts = truth()
    with Gpu("prefetch=off", device="auto", allow=DEATH + ["engine-gone", "no engine"]) as m:
        names = add_pages(m)
        equal(text_of(m, names[0]), texts[names[0]], "a text")
        equal(m.status()["engine"]["device"], "cuda:0", "device")
        m.tell(gone=1)
        for pid in m.engine_pids():
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not m.engine_pids(), "the end of the engine")
        fails(errno.EIO, open, m.text(names[1]))
        equal(text_of(m, names[0]), texts[names[0]], "a known text")
        trouble = m.status()["engine"]["trouble"]
        check("no GPU that CUDA may use" in trouble, trouble)
        # Another program starts an engine by the same name on the processor.
        engine = start(m.ocrfs, "read", "--runtime", m.runtime, "--cache", "memory", "--model",
                       MODEL, os.path.join(m.source, names[2]), env=m.env)
        equal(engine.communicate(timeout=30)[0].strip(b"\n"), texts[names[2]], "its text")
        fails(errno.EIO, open, m.text(names[3]))
        check("mount again" in m.status()["engine"]["trouble"], m.status()["engine"]["trouble"])
        for pid in m.engine_pids():
            os.kill(pid, signal.SIGKILL)
        m.tell()
        wait_for(lambda: not m.engine_pids(), "the end of the engine")
        equal(text_of(m, names[4]), texts[names[4]], "once it is back")
        equal(text_of(m, names[1]), texts[names[1]], "and one that failed")


main()
