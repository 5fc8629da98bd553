#!/usr/bin/env python3
"""The GPU kernels one by one:
python3 tests/gpu/test_ops.py [OPS.so] [fp16] [small] [CHECK...]

OPS.so holds kernels/cuda/*.cu with their symbols exported; it is made for the
card at hand if it is not named, nor in the folder that BUILD names. Each
operation runs on fresh random inputs, its output poisoned before, and is
compared with the same in float64 on the rounded inputs: the error, by relative
L2 and at the worst place, is at most twice that of the same torch operation in
the same dtype. Then: rows keep their bits at any batch, sampling follows its
rule, and each kernel's time beside what the card could do.
"""
import ctypes as c
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import torch
import torch.nn.functional as F

import ops as o
from model import Page, Text
from rule import choose, hash_of

ARGS = sys.argv[1:]
HALF = torch.float16 if "fp16" in ARGS else torch.bfloat16
SMALL = "small" in ARGS # for sanitizers
H = o.HALVES[HALF]
ONLY = [a for a in ARGS if a not in ("fp16", "small") and a[-3:] != ".so"]


def find_library():
    named = [a for a in ARGS if a.endswith(".so")]
    ready = pathlib.Path(os.environ.get("BUILD", "build"), "ops.so")
    if named or ready.exists():
        return str(pathlib.Path(named[0] if named else ready).resolve())
    return build_library(pathlib.Path(__file__).parents[2])


def build_library(root):
    """kernels/cuda/*.cu for this card."""
    folder = tempfile.mkdtemp()
    arch = "".join(map(str, torch.cuda.get_device_capability()))
    arch += "a" * (arch == "90")
    flags = ["nvcc", "-std=c++17", "-O3", f"-I{root}", "-Xcompiler", "-fPIC",
             f"-gencode=arch=compute_{arch},code=sm_{arch}"]
    jobs, objects = [], []
    for source in sorted(root.glob("kernels/cuda/*.cu")):
        objects.append(f"{folder}/{source.stem}.o")
        jobs.append(subprocess.Popen(
            [*flags, "-c", str(source), "-o", objects[-1]]))
    assert not any([j.wait() for j in jobs]), "nvcc"
    subprocess.run([*flags, "-shared", "-cudart", "static", *objects, "-o",
                    f"{folder}/ops.so"], check=True)
    return f"{folder}/ops.so"


LIB = o.Ops(find_library())
GENERATOR = torch.Generator("cuda")
LENGTHS = [1, 4, 127, 128, 129] + ([] if SMALL else [8580, 12100])
failures = []
table = []


def randn(*shape, std=1.0):
    return torch.randn(*shape, device="cuda", generator=GENERATOR) * std


def uniform(low, high, *shape):
    return torch.rand(*shape, device="cuda", generator=GENERATOR) \
        * (high - low) + low


def poison(*shape, dtype=None):
    return torch.full(shape, math.nan, device="cuda", dtype=dtype or HALF)


def errors(got, truth):
    difference = (got.double() - truth).abs()
    norm = truth.norm().item()
    return difference.norm().item() / (norm or 1), difference.max().item()


def expect(name, holds, what=""):
    if not holds:
        failures.append(f"{name}: {what}")


def compare(name, got, truth, same):
    """`same`: torch's answer in the dtype under test. In fp32 both are off by a
    unit in the last place or less, and by chance one of them by none."""
    mine, theirs = errors(got, truth), errors(same, truth)
    unit = 2.0 ** -23 if got.dtype == torch.float32 else 0
    room = (unit, unit * truth.abs().max().item())
    holds = torch.isfinite(got).all().item() and all(
        m <= 2 * t + 1e-12 + r for m, t, r in zip(mine, theirs, room))
    table.append((name, *mine, *theirs))
    expect(name, holds, f"error {mine} against torch's {theirs}")


def angles(positions, n, theta):
    f = 1 / theta ** (torch.arange(0, n, 2, device="cuda").double() / n)
    a = (torch.arange(positions, device="cuda").double()[:, None]
         * f.float().double()).float().double()
    return a.cos().float().contiguous(), a.sin().float().contiguous()


def rotate(x, cosine, sine):
    """x [..][n], cosine and sine [..][n / 2]."""
    low, high = x.chunk(2, -1)
    return torch.cat([low * cosine - high * sine,
                      high * cosine + low * sine], -1)


def norm(x, g, eps):
    return x * (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt() * g


def check_rows():
    for n in (256, 1024, 1088):
        for rows in LENGTHS:
            x, g = randn(rows, n, std=3), uniform(0.5, 1.5, n)
            truth = norm(x.double(), g.double(), 1e-5)
            out, out32 = poison(rows, n), poison(rows, n, dtype=torch.float32)
            LIB.rmsnorm(H, out, x, g, rows, n, 1e-5)
            LIB.rmsnorm32(out32, x, g, rows, n, 1e-5)
            same = F.rms_norm(x, (n,), g, 1e-5)
            compare(f"rmsnorm {rows} x {n}", out, truth, same.to(HALF))
            compare(f"rmsnorm32 {rows} x {n}", out32, truth, same)
    for rows in LENGTHS:
        inner = 768
        x = randn(rows, 2 * inner, std=2)
        gate, up = (x.view(rows, inner // 8, 2, 8)[:, :, i].reshape(rows, inner)
                    for i in (0, 1))
        out = poison(rows, inner)
        LIB.swiglu(H, out, x, rows, inner)
        compare(f"swiglu {rows}", out, F.silu(gate.double()) * up.double(),
                (F.silu(gate) * up).to(HALF))
        out = poison(rows, inner * 2)
        LIB.gelu(H, out, x, c.c_uint64(x.numel()))
        compare(f"gelu {rows}", out, F.gelu(x.double()), F.gelu(x).to(HALF))
        LIB.round(H, out, x, c.c_uint64(x.numel()))
        expect(f"round {rows}", torch.equal(out, x.to(HALF)))


def check_finite():
    for n in (4, 1024, 8580 * 1024):
        for bad in (None, math.nan, math.inf, -math.inf):
            for at in {0, n // 2, n - 1}:
                x, flag = randn(n), torch.zeros(1, device="cuda",
                                                dtype=torch.int32)
                if bad is not None:
                    x[at] = bad
                LIB.finite(flag, x, c.c_uint64(n))
                expect(f"finite {n} {bad} at {at}",
                       flag.item() == (bad is not None))


def check_patches():
    for lines, columns in ((2, 2), (1, 4), (110, 78), (110, 110)):
        rgb = torch.randint(0, 256, (lines * 14, columns * 14, 3),
                            device="cuda", dtype=torch.uint8,
                            generator=GENERATOR)
        values = randn(3, 256)
        out = poison(lines * columns, 592)
        LIB.patches(H, out, rgb, values, lines, columns)
        pixels = torch.stack([values[i][rgb[..., i].long()] for i in range(3)])
        rows = pixels.view(3, lines, 14, columns, 14).permute(
            1, 3, 0, 2, 4).reshape(lines * columns, 588)
        expect(f"patches {lines} x {columns}",
               torch.equal(out, F.pad(rows, (0, 4)).to(HALF)))


def check_merge():
    for lines, columns in ((2, 2), (3, 5), (110, 78)):
        n = 256
        x, g = randn(lines * columns, n), uniform(0.5, 1.5, n)
        out = poison(lines // 2 * (columns // 2), 4 * n)
        LIB.merge(H, out, x, g, lines, columns, n, 1e-6)

        def gather(rows):
            even = rows.view(lines, columns, n)[:lines // 2 * 2,
                                                :columns // 2 * 2]
            return even.reshape(lines // 2, 2, columns // 2, 2, n).permute(
                0, 2, 1, 3, 4).reshape(-1, 4 * n)
        compare(f"merge {lines} x {columns}", out,
                gather(norm(x.double(), g.double(), 1e-6)),
                gather(F.rms_norm(x, (n,), g, 1e-6).to(HALF)))


def check_vision_split():
    cosine, sine = (a.reshape(110, 2, 16).transpose(0, 1).contiguous() for a in
                    [torch.stack([t[:, 0::2], t[:, 1::2]], 1) for t in
                     angles(110, 64, 1e4)])
    for columns, lines in ((1, 1), (2, 2), (127, 1), (78, 110), (110, 110)):
        if columns > 110:
            columns, lines = 1, 110
        n, heads = columns * lines, 4
        x = randn(n, 3, heads, 64)
        q, k, v = (poison(heads, n, 64) for _ in range(3))
        LIB.vision_split(H, q, k, v, x, cosine, sine, 110, n, columns, heads)
        at = torch.arange(n, device="cuda")
        cs, sn = (torch.cat([t[0][at // columns], t[1][at % columns]],
                            -1)[:, None] for t in (cosine, sine))
        for name, got, i in (("q", q, 0), ("k", k, 1), ("v", v, 2)):
            part = x[:, i]
            truth = rotate(part.double(), cs.double(), sn.double())
            same = rotate(part, cs, sn)
            if name == "v":
                truth, same = part.double(), part
            compare(f"vision split {name} {n}", got.transpose(0, 1), truth,
                    same.to(HALF))


def with_outliers(k, keys):
    """Some keys are far larger than the rest."""
    for i in {0, 63, 64, 127, 128, 255, 256, keys - 1}:
        if i < keys:
            k[..., i, :] *= 6
    return k


def check_vision_attention():
    heads = 16
    for n in LENGTHS + [63, 64, 65, 255, 256, 257]:
        q, k, v = (randn(heads, n, 64, std=s).to(HALF) for s in (1.5, 1.5, 1))
        k = with_outliers(k, n)
        out = poison(n, heads, 64)
        LIB.vision_attention(H, out, q, k, v, n, heads)
        same = F.scaled_dot_product_attention(q[None], k[None], v[None])[0]
        rows = torch.arange(n, device="cuda")
        if n > 1000: # what float64 can do in time
            rows = torch.cat([rows[:130], rows[-130:], torch.randint(
                0, n, (250,), device="cuda", generator=GENERATOR)])
        truth = F.scaled_dot_product_attention(
            q[None, :, rows].double(), k[None].double(), v[None].double())[0]
        compare(f"vision attention {n}", out.transpose(0, 1)[:, rows], truth,
                same[:, rows])
        expect(f"vision attention {n}", torch.isfinite(out).all().item(),
               "not every value was written")


def check_prefill(heads, kv_heads):
    cosine, sine = angles(16384, 128, 1e6)
    for first, rows in ((0, 1), (0, 4), (0, 127), (0, 128), (0, 129), (37, 91),
                        (1000, 257), (0, 2157), (0, 8580))[:6 if SMALL else 9]:
        total = first + rows
        page = Page(total, 2, kv_heads, HALF, GENERATOR)
        q_norm, k_norm = uniform(1, 2.5, 128), uniform(0.5, 2, 128)
        x = randn(total, heads + 2 * kv_heads, 128)
        out, q = poison(total, heads, 128), poison(total, heads, 128)

        def run(start, count):
            p = o.Prefill(page.kv, 1, heads, start, count,
                          page.table.data_ptr(), q_norm.data_ptr(),
                          k_norm.data_ptr(), cosine.data_ptr(),
                          sine.data_ptr(), 1e-6)
            LIB.text_split(H, c.byref(p), q[start:], x[start:])
            LIB.prefill_attention(H, c.byref(p), out[start:], q[start:])
        if first:
            run(0, first)
        run(first, rows)
        name = f"prefill {heads}/{kv_heads} {first}+{rows}"
        cs, sn = cosine[:total, None], sine[:total, None]
        truth = [rotate(norm(x[:, :heads].double(), q_norm.double(), 1e-6),
                        cs.double(), sn.double()),
                 rotate(norm(x[:, heads:heads + kv_heads].double(),
                             k_norm.double(), 1e-6), cs.double(), sn.double()),
                 x[:, heads + kv_heads:].double()]
        same = [rotate(norm(x[:, :heads], q_norm, 1e-6), cs, sn),
                rotate(norm(x[:, heads:heads + kv_heads], k_norm, 1e-6), cs,
                       sn), x[:, heads + kv_heads:]]
        k, v = page.read(1)
        for which, got, t, s in (("q", q, truth[0], same[0]),
                                 ("k", k, truth[1], same[1]),
                                 ("v", v, truth[2], same[2])):
            compare(f"{name} {which}", got, t, s.to(HALF))
        # Attention on what was written.
        at = torch.arange(total, device="cuda")
        if total > 3000:
            at = torch.cat([at[:130], at[-130:]])
        mask = torch.arange(total, device="cuda")[None] <= at[:, None]
        args = [t.transpose(0, 1)[None] for t in (q[at], k, v)]
        truth = F.scaled_dot_product_attention(
            *[t.double() for t in args], attn_mask=mask, enable_gqa=True)[0]
        same = F.scaled_dot_product_attention(*args, attn_mask=mask,
                                              enable_gqa=True)[0]
        compare(f"{name} attention", out[at].transpose(0, 1), truth, same)
        whole = out.clone()
        for start in range(0, total, 100):
            run(start, min(100, total - start))
        expect(name, torch.equal(whole, out), "chunks change bits")


def check_embed():
    hidden = 256
    table_, features = randn(4096, hidden).to(HALF), randn(99, hidden)
    ids = torch.randint(0, 4096, (129,), device="cuda", generator=GENERATOR)
    source, truth = ids.to(torch.int64), table_[ids].float()
    source[5:104] = o.FEATURE | torch.arange(99, device="cuda")
    truth[5:104] = features
    x = poison(129, hidden, dtype=torch.float32)
    LIB.embed(H, x, source.to(torch.uint32), table_, features, 129, hidden)
    expect("embed", torch.equal(x, truth))


def check_decode_layer(heads, kv_heads, hidden, inner):
    lengths = [1, 4, 127, 128, 129, 255, 256, 257, 2700, 8580]
    if SMALL:
        lengths = [1, 4, 128, 257, 700]
    text = Text(LIB, HALF, GENERATOR, layers=1, heads=heads, kv_heads=kv_heads,
                hidden=hidden, inner=inner, vocab=4096, slots=len(lengths),
                longest=8592)
    for i, n in enumerate(lengths):
        text.fill(i, n - 1)
    cache = text.kv.data.clone()
    rows = list(range(len(lengths)))
    text.reset()
    text.put_rows(rows)
    text.begin()
    x = text.x[:len(rows)].clone()
    text.layer(0)
    name = f"decode layer {heads}/{kv_heads} hidden {hidden}"
    truth, same = text.reference(rows, x, cache, torch.float64), \
        text.reference(rows, x, cache, HALF)
    compare(name, text.x[:len(rows)], truth, same)
    for i, n in enumerate(lengths): # one row's error is mostly chance
        mine, theirs = errors(text.x[i], truth[i]), errors(same[i], truth[i])
        expect(f"{name} at {n}", mine[0] <= 4 * theirs[0],
               f"{mine} against {theirs}")
    got = text.x[:len(rows)].clone()
    # The same rows at every batch size, in other places, beside NaN.
    for tiles in (1, 2, 3, 4, 8, 16):
        for shift in (0, 3):
            places = [None] * (tiles * 8)
            mine = rows[:min(len(rows), tiles * 8 - shift)]
            for i in mine:
                places[(i * 5 + shift) % (tiles * 8) if tiles > 2
                       else i + shift] = i
            text.kv.data.copy_(cache)
            text.put_rows(places)
            text.begin()
            text.layer(0)
            for at, i in enumerate(places):
                if i is not None:
                    expect(f"{name}, {tiles} tiles",
                           torch.equal(text.x[at], got[i]),
                           f"row {i} has other bits")
    if len(set(rows)) > 1:
        text.kv.data.copy_(cache)
        text.put_rows(rows)
        text.begin()
        text.x[1] = math.nan
        text.layer(0)
        expect(name, torch.equal(text.x[0], got[0])
               and torch.equal(text.x[2], got[2]), "NaN spreads")


def check_step():
    """Whole steps: ids, hashes, stops, limits, cancelled rows, poison."""
    n = 24
    text = Text(LIB, HALF, GENERATOR, layers=2, heads=4, kv_heads=2, hidden=256,
                inner=768, vocab=4096, slots=n, longest=1024)
    for i in range(n):
        text.fill(i, 20 + 37 * i)
    settings = [{"limit": 40}, {"limit": 3}, {"poison_at": 2},
                {"forced": [7, 8, 9, 10, 11, 12]}]
    for i in range(n):
        text.set_slot(i, **settings[i % 4])
    saved = text.kv.data.clone()

    def run(places, steps, cancel_at=None):
        text.kv.data.copy_(saved)
        text.reset()
        text.put_rows(places)
        for step in range(steps):
            if step == cancel_at:
                text.cancel[4] = 1
            text.step()
            torch.cuda.synchronize()
        text.cancel.zero_()
        return text.results()
    alone = {}
    for i in range(n):
        alone[i] = run([i], 8)[i]
    for places in (list(range(n)), list(reversed(range(n))),
                   list(range(n)) + [None] * 40,
                   [None] * 5 + list(range(n)) + [None] * 99):
        got = run(places, 8)
        for i in range(n):
            expect("decode step", got[i] == alone[i],
                   f"slot {i}: {got[i]} beside others, {alone[i]} alone")
    for i in range(n):
        ids, status = [a[0] for a in alone[i]], [a[1] for a in alone[i]]
        want = {0: [o.RUNNING] * 8, 1: [o.RUNNING, o.RUNNING, o.LAST],
                2: [o.RUNNING, o.RUNNING, o.BAD], 3: [o.RUNNING] * 5 + [o.LAST]}
        expect("decode step", status == want[i % 4], f"slot {i}: {status}")
        expect("decode step", i % 4 != 3 or ids == [7, 8, 9, 10, 11, 12],
               f"forced ids: {ids}")
    stop = alone[0][4][0]
    text.set_slot(0, stop_ids=[stop])
    got = run(list(range(n)), 8)[0]
    first = [a[0] for a in alone[0]].index(stop)
    expect("stop id", [a[1] for a in got] == [o.RUNNING] * first + [o.STOPPED],
           f"{got}")
    text.set_slot(0, stop_ids=[stop], keep=6)
    expect("stop id before keep", run([0], 8)[0][:5] == alone[0][:5])
    got = run(list(range(n)), 8, cancel_at=2)
    expect("cancel", [a[1] for a in got[4]] ==
           [o.RUNNING, o.RUNNING, o.CANCELLED], f"{got[4]}")
    expect("cancel", got[8] == alone[8], "another slot has changed")
    # In a graph.
    text.kv.data.copy_(saved)
    text.set_slot(0)
    text.reset()
    text.put_rows(list(range(n)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        text.step()
    for _ in range(8):
        graph.replay()
    torch.cuda.synchronize()
    got = text.results()
    expect("graph", all(got[i] == alone[i] for i in range(1, n)),
           "a graph gives other ids")


def check_logits_and_sampling():
    n, vocab = 64, 8192
    text = Text(LIB, HALF, GENERATOR, layers=1, heads=4, kv_heads=2, hidden=256,
                inner=768, vocab=vocab, slots=n, longest=512)
    for i in range(n):
        text.fill(i, 10 + i)
    temperatures = [0, 0.2, 0.7, 1.0, 5.0, 50.0]
    top_ps = [1.0, 0.9, 0.5, 0.05]
    penalties = [1.0, 1.3]
    for i in range(n):
        text.set_slot(i, limit=400, temperature=temperatures[i % 6],
                      top_p=top_ps[i // 6 % 4], penalty=penalties[i % 2],
                      seed=i * 0x123456789abcdef, page_hash=~i % (1 << 64))
    text.reset()
    text.put_rows(list(range(n)))
    text.head.mul_(6)
    seen = [set() for _ in range(n)]
    generated = {i: 0 for i in range(n)}
    for step in range(12):
        before = [s.position for s in text.read_slots()]
        text.step()
        torch.cuda.synchronize()
        logits = text.logits[:n].cpu()
        x = text.x[:n]
        g, w = text.norm.double(), text.head.double()
        if not step:
            truth = norm(x.double(), g, 1e-6).to(HALF).double() @ w.T
            # torch's product in half rounds its result; ours does not.
            same = (norm(x, text.norm, 1e-6).to(HALF) @ text.head.T)
            compare("logits", text.logits[:n], truth, same)
        results = text.results()
        for i in range(n):
            slot = text.slots_set[i]
            want = choose(logits[i].numpy(), seen[i], slot, before[i] + 1)
            id_, status, hash_ = results[i][generated[i]]
            generated[i] += 1
            expect("sampling", id_ in want, f"slot {i} step {step}: {id_} "
                   f"instead of {want}, temperature {slot.temperature}, "
                   f"top_p {slot.top_p}")
            seen[i].add(id_)
            if step < 2:
                expect("hash", hash_ == hash_of(logits[i].numpy()), f"slot {i}")


def captured(run, times=1):
    """A graph of `times` runs, so that the host's calls cost nothing."""
    run(0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(times):
            run(i)
    return graph


def median_us(graph, times=1, repeat=15):
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)]
              for _ in range(repeat)]
    for _ in range(3):
        graph.replay()
    for a, b in events:
        a.record()
        graph.replay()
        b.record()
    torch.cuda.synchronize()
    return sorted(a.elapsed_time(b) for a, b in events)[repeat // 2] \
        * 1000 / times


def report(name, us, flops=0, size=0):
    rate = f"{flops / us / 1e6:8.0f} TFLOP/s" if flops else \
        f"{size / us / 1e3:8.0f} GB/s   "
    floor = flops / 790e6 if flops else size / 4.3e6
    print(f"{name:40} {us:9.1f} us {rate}   floor {floor:8.1f} us")


def time_one(name, run, flops=0, size=0):
    report(name, median_us(captured(lambda i: run(), 8), 8), flops, size)


def time_rows():
    n = 8580
    x, g, out = randn(n, 1024), uniform(0.5, 1.5, 1024), poison(n, 1024)
    time_one("rmsnorm 8580 x 1024",
             lambda: LIB.rmsnorm(H, out, x, g, n, 1024, 1e-5), size=n * 6144)
    wide, inner = randn(n, 8192), poison(n, 4096)
    time_one("swiglu 8580 x 4096", lambda: LIB.swiglu(H, inner, wide, n, 4096),
             size=n * 4096 * 10)
    qkv = randn(n, 3072)
    cosine, sine = (randn(2, 110, 16) for _ in range(2))
    q, k, v = (poison(16, n, 64) for _ in range(3))
    time_one("vision split 8580", lambda: LIB.vision_split(
        H, q, k, v, qkv, cosine, sine, 110, n, 78, 16), size=n * 3072 * 6)
    rgb = torch.randint(0, 256, (1540, 1092, 3), device="cuda",
                        dtype=torch.uint8, generator=GENERATOR)
    rows, values = poison(n, 592), randn(3, 256)
    time_one("patches 8580",
             lambda: LIB.patches(H, rows, rgb, values, 110, 78),
             size=n * (588 + 1184))


def time_attention():
    for n in (8580, 12100):
        q, k, v = (randn(16, n, 64).to(HALF) for _ in range(3))
        out = poison(n, 1024)
        time_one(f"vision attention {n}", lambda: LIB.vision_attention(
            H, out, q, k, v, n, 16), flops=4 * n * n * 1024)
        time_one(f"  torch {n}", lambda: F.scaled_dot_product_attention(
            q[None], k[None], v[None]), flops=4 * n * n * 1024)
    n = 2157
    page = Page(n, 1, 8, HALF, GENERATOR)
    g = uniform(1, 2, 128)
    cosine, sine = angles(n, 128, 1e6)
    p = o.Prefill(page.kv, 0, 16, 0, n, page.table.data_ptr(), g.data_ptr(),
                  g.data_ptr(), cosine.data_ptr(), sine.data_ptr(), 1e-6)
    x, q, out = randn(n, 32, 128), poison(n, 16, 128), poison(n, 16, 128)
    time_one("text split 2157", lambda: LIB.text_split(H, c.byref(p), q, x),
             size=n * 4096 * 6)
    time_one("prefill attention 2157", lambda: LIB.prefill_attention(
        H, c.byref(p), out, q), flops=2 * n * n * 2048)


def time_decode():
    text = Text(LIB, HALF, GENERATOR, layers=28, heads=16, kv_heads=8,
                hidden=1024, inner=3072, vocab=151936, slots=128, longest=2816)
    text.kv.data.normal_(generator=GENERATOR)
    text.position = [2700] * 128
    weights = 1.192e9
    for batch in (1, 2, 8, 16, 32, 64, 128):
        for i in range(128):
            text.set_slot(i, limit=10 ** 6)
        text.reset()
        text.put_rows(list(range(batch)))
        report(f"decode step, {batch} pages",
               median_us(captured(lambda i: text.step())),
               size=weights + batch * 2701 * 114688)
        if batch not in (1, 8, 64):
            continue
        for name, run in (("begin", lambda i: text.begin()),
                          ("a layer", text.layer)):
            print(f"    {name:12} {median_us(captured(run, 10), 10):8.1f} us")
        text.reset()
        print(f"    {'end':12} "
              f"{median_us(captured(lambda i: text.end(), 4), 4, 5):8.1f} us")


def profile_decode():
    """Each kernel of a step by itself, as the profiler sees it."""
    text = Text(LIB, HALF, GENERATOR, layers=28, heads=16, kv_heads=8,
                hidden=1024, inner=3072, vocab=151936, slots=64, longest=2816)
    text.kv.data.normal_(generator=GENERATOR)
    text.position = [2700] * 64
    for batch in (1, 8, 64, -64):
        if batch < 0: # blocks of a page side by side
            text.tables.copy_(torch.arange(text.blocks).reshape(64, -1))
        text.reset()
        text.put_rows(list(range(abs(batch))))
        text.step()
        with torch.profiler.profile(
                activities=[torch.profiler.ProfilerActivity.CUDA]) as p:
            for _ in range(3):
                text.step()
            torch.cuda.synchronize()
        print(f"{batch} pages")
        for e in sorted(p.key_averages(), key=lambda e: -e.device_time_total):
            if e.count >= 3 and e.device_time_total:
                print(f"  {e.device_time_total / e.count:8.1f} us x "
                      f"{e.count // 3:3}  {e.key[:110]}")


def one_step():
    """For ncu: one step of two layers."""
    text = Text(LIB, HALF, GENERATOR, layers=2, heads=16, kv_heads=8,
                hidden=1024, inner=3072, vocab=151936, slots=64, longest=2816)
    text.kv.data.normal_(generator=GENERATOR)
    text.position = [2700] * 64
    text.reset()
    for batch in (64, 1):
        text.put_rows(list(range(batch)))
        text.step()


CHECKS = [
    ("rows", check_rows), ("finite", check_finite), ("patches", check_patches),
    ("merge", check_merge), ("embed", check_embed),
    ("split", check_vision_split), ("vision", check_vision_attention),
    ("prefill", lambda: [check_prefill(*h) for h in ((16, 8), (4, 4), (8, 2))]),
    ("layer", lambda: [check_decode_layer(*s) for s in (
        (16, 8, 1024, 3072), (4, 2, 256, 768), (4, 4, 320, 192),
        (8, 2, 256, 768))]),
    ("step", check_step), ("sampling", check_logits_and_sampling),
    ("time-rows", time_rows), ("time-attention", time_attention),
    ("time-decode", time_decode), ("profile", profile_decode),
    ("one-step", one_step),
]


def main():
    seed = int(time.time())
    GENERATOR.manual_seed(seed)
    print(f"{torch.cuda.get_device_name()}, {HALF}, seed {seed}")
    rc = LIB.lib.cuda_ops_prepare(H)
    assert rc == 0, f"prepare: {rc}"
    for name, check in CHECKS:
        if name not in ONLY if ONLY else name in ("profile", "one-step"):
            continue
        start, had = time.time(), len(failures)
        try:
            check()
            torch.cuda.synchronize()
        except Exception as e: # the others go on, if the device does
            failures.append(f"{name}: {type(e).__name__}: {e}")
        torch.cuda.empty_cache()
        print(f"{name}: {'ok' if len(failures) == had else 'FAILED'}, "
              f"{time.time() - start:.1f} s", flush=True)
    worst = sorted(table, key=lambda r: -r[1] / (r[3] or 1))[:8]
    for name, l2, most, their_l2, their_most in worst:
        print(f"{name:40} L2 {l2:.2e} worst {most:.2e}, "
              f"torch {their_l2:.2e} {their_most:.2e}")
    for f in failures[:40]:
        print("FAILED", f)
    print(f"{len(table)} comparisons, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
