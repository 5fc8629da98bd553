#!/usr/bin/env python3
"""Puts faults into the GPU's backend, one at a time, and shows that a named
test fails for each.

    mutants.py build FOLDER   makes a plugin for each fault (needs nvcc, no GPU)
    mutants.py run FOLDER     tries them (needs a GPU; BUILD: the tests)

A place that is no longer there, or a fault that no test sees, is an error."""
import os
import shutil
import subprocess
import sys
from pathlib import Path
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))
import faults
from faults import ROOT

BUILD = Path(os.environ.get("BUILD", ROOT / "build/opt")).resolve()
TREE = ROOT / "build/gpu-mutants"

CUDA = "kernels/cuda/"

# Fault, file, changes (what stands there, what takes its place), test program.
FAULTS = [
    ("vision RoPE: one table for rows and columns", "kernels/tables.c", [
        ("frequency(2 * i + side,", "frequency(2 * i,")], "parity"),
    ("text RoPE: base of the vision encoder", "kernels/tables.c", [
        ("t->rope_theta", "1e4f")], "parity"),
    ("vision: lines taken for columns", CUDA + "page.c", [
        ("p->patches, p->columns,", "p->patches, p->lines,")], "parity"),
    ("merge: patch outermost instead of channel", CUDA + "weights.c", [
        (".unfold = p->merge * p->merge", ".unfold = 1")], "parity"),
    ("q and k norm swapped", CUDA + "weights.c", [
        ("to->q_norm = vector(s, &l->q_norm)", "to->q_norm = vector(s, &l->k_norm)"),
        ("to->k_norm = vector(s, &l->k_norm)", "to->k_norm = vector(s, &l->q_norm)")], "parity"),
    ("gate and up in groups of another size", CUDA + "weights.c", [
        ("GROUP = 8 ", "GROUP = 16 ")], "parity"),
    ("image features backwards", CUDA + "page.c", [
        ("CUDA_FEATURE | s->image_used++",
         "CUDA_FEATURE | (s->image_tokens - 1 - s->image_used++)")], "parity"),
    ("decoding: position off by one", CUDA + "page.c", [
        (".position = c->prompt_len - 1", ".position = c->prompt_len")], "parity"),
    ("prefill: every chunk begins at 0", CUDA + "page.c", [
        (".first = first,", ".first = 0 * first,")], "parity"),
    ("stop ids are ids", CUDA + "page.c", [
        ("c->forced ? 0 : c->stop_count", "0")], "cpu_contract"),
    ("blocks of another slot", CUDA + "backend.c", [
        ("* cuda_slot_number(b, s) + first", "* 0 + first")], "parity_independence"),
    ("a cancelled page goes on", CUDA + "backend.c", [
        ("    __atomic_store_n(&b->cancel[cuda_slot_number(b, s)], 1, __ATOMIC_RELEASE);\n",
         "")], "parity_mixed"),
    ("rows of the step before", CUDA + "step.c", [
        ("if (l->code || !memcmp(rows, b->rows, bytes))", "if (l->code || b->rows[0] < 9)")],
     "parity_mixed"),
    ("an id read twice", CUDA + "step.c", [
        ("    s->read++;\n    return status;", "    s->read += s->read % 3 != 0;\n    return status;")],
     "parity"),
    ("logits are not checked", CUDA + "step.c", [
        ("    if (status == CUDA_BAD) {", "    if (status == CUDA_BAD && !s) {")], "parity_mixed"),
    ("pixels: BGR", CUDA + "split.cu", [
        ("v = table[channel * 256 +", "v = table[(2 - channel) * 256 +")], "parity"),
    ("attention: scale of another head size", CUDA + "attention.cu", [
        ("(DIM == 64 ? 0.125f", "(DIM == 64 ? 0.08838834764831845f")], "parity"),
    ("penalty multiplies", CUDA + "sample.cu", [
        ("return x > 0 ? __fdiv_rn(x, penalty)", "return x > 0 ? __fmul_rn(x, penalty)")],
     "cpu_contract"),
    ("splits merged without their maxima", CUDA + "attend.cu", [
        ("const float old = exp2_fast(most - high)", "const float old = 1")], "parity"),
]


def make():
    out = subprocess.run(["make", "-s", "-j2", "CUDA_ARCHS=90a", "build/opt/ocrfs-cuda.so"],
                         cwd=TREE, capture_output=True, text=True)
    if out.returncode:
        sys.exit(out.stderr)


def build(folder):
    os.environ.pop("MAKEFLAGS", None)
    faults.copy_tree(TREE)
    make()
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(TREE / "build/opt/ocrfs-cuda.so", folder / "right.so")
    for number, (fault, file, changes, _) in enumerate(FAULTS):
        with faults.put_in(TREE, fault, file, changes):
            make()
            subprocess.run(["strip", "-o", folder / f"{number}.so",
                            TREE / "build/opt/ocrfs-cuda.so"], check=True)
        print(f"{fault}: built", flush=True)


def failing(plugin, test):
    env = dict(os.environ, OCRFS_TEST_DEVICE="cuda", OCRFS_TEST_PLUGIN=str(plugin))
    if (BUILD / "lib").is_dir():
        env["LD_LIBRARY_PATH"] = str(BUILD / "lib")
    return faults.failing([BUILD / "tests/unit" / f"test_{test}"], cwd=ROOT, env=env, timeout=20)


def run(folder):
    for test in sorted({f[-1] for f in FAULTS}):
        if failing(folder / "right.so", test):
            sys.exit(f"test_{test} fails without a fault")
    unseen = 0
    for number, (fault, file, _, test) in enumerate(FAULTS):
        seen = failing(folder / f"{number}.so", test)
        unseen += seen is None
        faults.report(fault, file, test, seen)
    print(f"{len(FAULTS) - unseen} of {len(FAULTS)} faults are seen")
    return unseen > 0


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("build", "run"):
        sys.exit(__doc__)
    sys.exit({"build": build, "run": run}[sys.argv[1]](Path(sys.argv[2]).resolve()))
