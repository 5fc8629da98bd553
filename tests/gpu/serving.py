"""The stages of tests/gpu/run that are about serving: many pages at once, of a
model of LightOnOCR-2-1B's size that a seed draws (tests/bench/full_model.py),
by tests/tools/ocr-bench, and the file system on top.

TRY=1: a small model and few pages, to see whether this script itself works, on
a played GPU too (OCRFS_TEST_PLUGIN and LD_LIBRARY_PATH, see
tests/plugin/played.h)."""
import ctypes
import itertools
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/lib"), str(ROOT / "tests/bench")]
import full_model  # noqa: E402
from picture import png  # noqa: E402

TRY = bool(os.environ.get("TRY"))
A4 = "1092x1540"      # 110 x 78 patches
LARGEST = "1540x1540"  # 12,100


class Nvml:
    """What the card says of itself, often and cheaply; nothing without NVML."""

    def __init__(self):
        self.handle = None
        try:
            self.lib = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        handle = ctypes.c_void_p()
        if not self.lib.nvmlInit_v2() and \
                not self.lib.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)):
            self.handle = handle

    def _number(self, name, *args):
        value = ctypes.c_uint()
        if self.handle is None or getattr(self.lib, name)(self.handle, *args, ctypes.byref(value)):
            return 0
        return value.value

    def clock_mhz(self):
        return self._number("nvmlDeviceGetClockInfo", 1)  # of the multiprocessors

    def power_w(self):
        return self._number("nvmlDeviceGetPowerUsage") / 1000

    def used(self):
        """Bytes in use, by all processes."""
        memory = (ctypes.c_ulonglong * 3)()
        if self.handle is None or self.lib.nvmlDeviceGetMemoryInfo(self.handle, memory):
            return 0
        return memory[2]


class Watch:
    """Asks every 50 ms while the block runs."""

    def __init__(self, nvml):
        self.nvml, self.seen, self.stop = nvml, [], threading.Event()

    def __enter__(self):
        self.before = self.nvml.used()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        return self

    def _run(self):
        while not self.stop.wait(0.05):
            self.seen.append((self.nvml.used(), self.nvml.clock_mhz(), self.nvml.power_w()))

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()

    def most(self):
        return max([s[0] for s in self.seen] or [0]) - self.before

    def describe(self):
        busy = [s for s in self.seen if s[2]] or [(0, 0, 0)]
        return "SM %.0f MHz, %.0f W" % tuple(sum(s[i] for s in busy) / len(busy) for i in (1, 2))


class Serving:
    def __init__(self, record, call, build):
        self.record, self.call, self.build = record, call, build
        self.nvml = Nvml()
        self.folder = None

    def model(self):
        """Of this run, made when it is first needed."""
        if TRY:
            return ROOT / "tests/data/tiny-reader"
        if not self.folder:
            self.folder = Path(tempfile.mkdtemp(prefix="ocrfs-serving-"))
            full_model.make_folder(self.folder / "full")
        return self.folder / "full"

    def clean(self):
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def bench(self, *args, files=(), memory=None, steps=None):
        """What ocr-bench says, and its status; figures by name."""
        words = ["slots=16"] if TRY else []
        words += ["steps=%d" % steps] if steps else []
        words += ["memory=%dG" % memory] if memory else []
        args = list(args)
        if TRY:
            args += ["-n", "24", "-m", "4-20", "-l", "20-60", "-L", "1", "-s", "280x140", "-u", "3"]
        text, status = self.call(self.build / "tests/tools/ocr-bench", "-d", "cuda",
                                 "-e", self.build / "ocrfs-engine", "-a", ":".join(words),
                                 *args, self.model(), *files)
        found = {}
        for line in text.splitlines():
            name, _, rest = line.partition(" ")
            words = rest.split()
            if len(words) > 1 and words[0].startswith("p50"):
                found[name] = dict(zip(words[0::2], map(float, words[1::2])))
            elif words:
                found[name] = words
        if status:
            print(text[-3000:])
        return found, status

    def line(self, stage, what, value, bound, good):
        self.record(stage, what, value, bound, bool(good))

    @staticmethod
    def spread(figures, name):
        f = figures.get(name, {})
        return "p50 %.1f, p95 %.1f, p99 %.1f, max %.1f" % tuple(
            f.get(k, float("nan")) for k in ("p50", "p95", "p99", "max"))

    # ---- stages -------------------------------------------------------------

    def throughput(self):
        rates = {}
        for what, files in itertools.chain([("pixels", [])], self.files()):
            with Watch(self.nvml) as w:
                f, status = self.bench("-c", 64, "-n", 512, "-l", "500-1500", "-m", "65-448", "-L",
                                       60 if what == "pixels" else 20, "-s", A4, files=files)
            rates[what] = float(f.get("pages/s", ["nan"])[0])
            good = rates[what] >= 6 if what == "pixels" else rates[what] >= 0.97 * rates["pixels"]
            self.line("throughput", what + ": pages/s", "%.2f (%s)" % (rates[what], w.describe()),
                      "6.0" if what == "pixels" else "0.97 of it", status == 0 and good)
            print("    first token ms: " + self.spread(f, "first_token_ms"))
            print("    gap ms: " + self.spread(f, "gap_ms"))
            print("    page s: " + self.spread(f, "page_s"))

    def files(self):
        """A page of 300 dpi, gray, as PNG and, where Pillow is there, as JPEG."""
        folder = Path(tempfile.mkdtemp(prefix="ocrfs-pages-"))
        draw = random.Random(1)
        width, height = (280, 140) if TRY else (2480, 3508)
        row = bytes(255 if draw.random() < 0.8 else 0 for _ in range(width))
        rows = [row[i % 97:] + row[:i % 97] if i // 40 % 2 else b"\xff" * width
                for i in range(height)]
        (folder / "page.png").write_bytes(png(width, height, rows))
        yield "PNG files, 4 helpers", [folder / "page.png"]
        try:
            from PIL import Image
        except ImportError:
            print("    no Pillow: JPEG files are left out")
        else:
            Image.open(folder / "page.png").save(folder / "page.jpg", quality=90)
            yield "JPEG files, 4 helpers", [folder / "page.jpg"]
        shutil.rmtree(folder, ignore_errors=True)

    def latency(self):
        f, status = self.bench("-c", 64, "-n", 160, "-l", "300-900", "-s", LARGEST)
        gap = f.get("gap_ms", {})
        self.line("latency", "gaps beside 12,100 patches, ms", self.spread(f, "gap_ms"),
                  "p99 20, max 60",
                  status == 0 and gap.get("p99", 99) <= 20 and gap.get("max", 99) <= 60)
        f, status = self.bench("-c", 64, "-n", 320, "-l", "300-900", "-s", A4, "-u", 50)
        urgent = f.get("urgent_first_token_ms", {})
        self.line("latency", "first token of 50 urgent pages, ms",
                  self.spread(f, "urgent_first_token_ms"), "p95 300",
                  status == 0 and urgent.get("p95", 999) <= 300)
        f, status = self.bench("-c", 64, "-n", 200, "-l", "100-600", "-s", A4, "-k", 40)
        given_up = f.get("given_up_ms", {})
        self.line("latency", "given up: slot and blocks free, ms", self.spread(f, "given_up_ms"),
                  "max 30", status == 0 and given_up.get("max", 99) <= 30)
        for steps in (1, 2, 4):  # what one step a submit costs
            f, _ = self.bench("-c", 64, "-n", 128, "-l", "300-500", "-s", A4, steps=steps)
            print("    steps=%d: %s pages/s" % (steps, f.get("pages/s", ["?"])[0]))

    def limits(self):
        for gb, pages in ((16, 1000), (24, 1000), (32, 200), (40, 200), (80, 200)):
            with Watch(self.nvml) as w:
                f, status = self.bench("-c", 64, "-n", pages, "-l", "32-384", "-s", "mixed",
                                       memory=gb)
            blocks = f.get("blocks_free", ["?", "of", "!"])
            self.line("limits", "%d pages in %d GiB" % (pages, gb),
                      "%.2f GiB used, %s" % (w.most() / 2**30, " ".join(blocks)), "%d GiB" % gb,
                      status == 0 and w.most() <= gb << 30 and blocks[0] == blocks[2])
        self.stolen()

    def stolen(self):
        """Another process takes 2 GB while the model is being opened."""
        try:
            import torch  # noqa: F401
        except ImportError:
            print("    no torch: nobody takes memory in between")
            return
        thief = ("import sys, time, torch\ntime.sleep(float(sys.argv[1]))\n"
                 "x = torch.empty(2 << 30, dtype=torch.uint8, device='cuda')\ntime.sleep(60)")
        for delay in (0.0, 0.5, 1.0, 2.0, 3.0):
            child = subprocess.Popen([sys.executable, "-c", thief, str(delay)])
            f, status = self.bench("-c", 16, "-n", 32, "-l", "32-64", "-s", "mixed")
            child.kill()
            child.wait()
            self.line("limits", "2 GB are taken after %.1f s" % delay,
                      " ".join(f.get("works_with", ["refused"]))[:28], "", status in (0, 2))

    def faults(self):
        """The mount tests with the played GPU before the real one."""
        plugin = self.build / "ocrfs-cuda.so"
        text, status = self.call(sys.executable, ROOT / "tests/mount/test_gpu.py",
                                 environment={} if TRY else {"OCRFS_PLAYED_OVER": str(plugin)})
        held = len(re.findall(r"^ok \d+ (?!.*# SKIP)", text, re.M))
        self.line("faults", "test_gpu.py", "%d hold" % held, "", status == 0 and held > 0)
        print(text[-4000:] if status else "\n".join(re.findall(r"^# ls.*", text, re.M)))

    def mounted(self):
        """grep -r over 500 pages beside the engine's own rate."""
        if not os.path.exists("/dev/fuse"):
            print("    no /dev/fuse: nothing can be mounted here")
            return
        for model in {ROOT / "tests/data/tiny-reader", self.model()}:
            self.one_mount(model)

    def one_mount(self, model):
        base = Path(tempfile.mkdtemp(prefix="ocrfs-mounted-"))
        pages, tokens = (20, 20) if TRY else (500, 300)
        for name in ("source", "mnt", "run"):
            (base / name).mkdir(mode=0o700)
        draw = random.Random(2)
        for i in range(pages):
            row = bytes(255 if draw.random() < 0.8 else 0 for _ in range(280 if TRY else 1092))
            rows = [row if y // 20 % 2 else b"\xff" * len(row) for y in range(140 if TRY else 1540)]
            (base / "source" / ("%04d.png" % i)).write_bytes(png(len(row), len(rows), rows, 1))
        files = sorted((base / "source").iterdir())
        f, _ = self.bench("-n", pages, "-m", "1-%d" % pages, "-l", "%d-%d" % (tokens, tokens),
                          files=files)
        options = "engine=lighton,model=%s,device=cuda,cache=memory,runtime=%s,max_tokens=%d" % (
            model, base / "run", tokens)
        child = subprocess.Popen([str(self.build / "ocrfs"), str(base / "source"),
                                  str(base / "mnt"), "-f", "-o", options])
        deadline = time.monotonic() + 30
        while not os.path.ismount(base / "mnt") and time.monotonic() < deadline:
            time.sleep(0.1)
        start = time.monotonic()
        found = subprocess.run(["grep", "-rc", "", str(base / "mnt"), "--include=*.md"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        rate = pages / (time.monotonic() - start)
        subprocess.run(["fusermount3", "-u", str(base / "mnt")], check=False)
        child.wait(30)
        own = float(f.get("pages/s", ["nan"])[0])
        self.line("mounted", "grep -r, %s: pages/s" % model.name, "%.2f, engine %.2f" % (rate, own),
                  "0.9 of it", found.stdout.count("\n") == pages and (TRY or rate >= 0.9 * own))
        if found.stderr:
            print(found.stderr[-500:])
        shutil.rmtree(base, ignore_errors=True)


NAMES = ("throughput", "latency", "limits", "faults", "mounted")


def stages(record, call, build):
    s = Serving(record, call, build)
    return s, {name: getattr(s, name) for name in NAMES}
