#!/usr/bin/env python3
"""Puts faults into the forward pass, one at a time, in a copy of the tree under
build/mutants, and shows that a named test fails for each: `make mutants`.

A fault is a change of one place of one file. A place that is no longer there,
or a fault that no test sees, ends in an error."""
import os
import subprocess
import sys
import time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import faults
from faults import ROOT

TREE = ROOT / "build/mutants"
SMALL = "70000"  # pixels of the largest page of tiny-reader that is read

CPU = "kernels/cpu/"
TABLES = "kernels/tables.c"

# Fault, file, changes (what stands there, what takes its place), test program.
FAULTS = [
    ("vision RoPE: row and column swapped", CPU + "tower.c", [
        ("(size_t)(token / p->grid_columns) * part", "(size_t)(token % p->grid_columns) * part"),
        ("(b->grid + token % p->grid_columns)", "(b->grid + token / p->grid_columns)")], "parity"),
    ("vision RoPE: one table for rows and columns", TABLES, [
        ("frequency(2 * i + side, v", "frequency(2 * i, v")], "parity"),
    ("RoPE of adjacent pairs", CPU + "body.h", [
        ("""    for (unsigned i = 0; i < half; i += 16) {
        const unsigned m = half - i;
        const struct v16 a = v_load_n(x + i, m), b = v_load_n(x + half + i, m);
""", """    for (unsigned i = 0; i < half; i++) {
        const float l = x[2 * i], r = x[2 * i + 1];
        x[2 * i] = l * cosine[i] - r * sine[i];
        x[2 * i + 1] = r * cosine[i] + l * sine[i];
    }
    for (unsigned i = half; i < half; i += 16) {
        const unsigned m = half - i;
        const struct v16 a = v_load_n(x + i, m), b = v_load_n(x + half + i, m);
""")], "parity"),
    ("text RoPE: position off by one in decoding", CPU + "decode.c", [
        ("b->text_cosine + (size_t)slot->position", "b->text_cosine + (size_t)(slot->position - 1)"),
        ("b->text_sine + (size_t)slot->position", "b->text_sine + (size_t)(slot->position - 1)")],
     "parity"),
    ("text RoPE: base of the vision encoder", TABLES, [
        ("t->head_dim, t->rope_theta", "t->head_dim, 1e4F")], "parity"),
    ("pixels: BGR", CPU + "encode.c", [("p[3 * x + c]", "p[3 * x + 2 - c]")],
     "parity_synthetic"),
    ("pixels: channel innermost in a patch", CPU + "encode.c", [
        ("out[(c * n + y) * n + x]", "out[(y * n + x) * 3 + c]")], "parity"),
    ("merge: columns before rows", CPU + "encode.c", [
        ("(size_t)(row + y) * e->pass.grid_columns + column + x",
         "(size_t)(row + x) * e->pass.grid_columns + column + y")], "parity"),
    ("merge: patch outermost instead of channel", CPU + "open.c", [
        (".unfold = m->projector.merge * m->projector.merge", ".unfold = 1")], "parity"),
    ("projector: norm after merging", CPU + "encode.c", [
        ("""            b->isa->rmsnorm(out, b->x + patch * n, b->projector_norm, n,
                            b->projector_eps);
""", "            memcpy(out, b->x + patch * n, n * sizeof *out);\n"),
        ("""        project(e, s, &b->merging, inputs, rows);
""", """        project(e, s, &b->merging, inputs, rows);
        for (uint32_t r = 0; r < rows; r++) {
            float *x = s->wide + (size_t)r * b->merging.columns;
            b->isa->rmsnorm(x, x, b->projector_norm, n, b->projector_eps);
        }
""")], "parity"),
    ("projector: GELU by tanh", CPU + "ops.c", [
        ("(1 + erf(x[i] * 0x1.6a09e667f3bcdp-1))",
         "(1 + tanh(0.7978845608 * (x[i] + 0.044715 * x[i] * x[i] * x[i])))")], "parity"),
    ("vision: eps of the decoder", CPU + "open.c", [
        (".eps = v->norm_eps", ".eps = 1e-6F")], "parity_synthetic"),
    ("vision: a norm behind the last layer", CPU + "encode.c", [
        ("    run(&e, project_tokens);\n", """    for (uint32_t r = 0; r < e.pass.rows; r++)
        b->isa->rmsnorm(b->x + (size_t)r * b->vision.hidden,
                        b->x + (size_t)r * b->vision.hidden, b->ln_pre,
                        b->vision.hidden, b->vision.eps);
    run(&e, project_tokens);
""")], "parity"),
    ("q and k norm swapped", CPU + "open.c", [
        (".q_norm = &l->q_norm", ".q_norm = &l->k_norm"),
        (".k_norm = &l->k_norm", ".k_norm = &l->q_norm")], "parity"),
    ("heads share K and V alternately", CPU + "tower.c", [
        ("head / (t->heads / t->kv_heads)", "head % t->kv_heads")], "parity"),
    ("image tokens see those behind them", CPU + "tower.c", [
        ("t->causal ? p->first + first + rows : tokens_of(p)", "tokens_of(p)"),
        ("t->causal ? (int64_t)p->first + first + 1 - start : keys,\n            t->causal)",
         "keys,\n            0)")], "parity"),
    ("causal mask off by one", CPU + "tower.c", [
        ("(int64_t)p->first + first + 1 - start", "(int64_t)p->first + first + 2 - start")],
     "parity"),
    ("attention: scale of another head size", CPU + "attention.c", [
        ("1.0f / sqrtf((float)a->kv->head_dim)", "1.0f / sqrtf(64)")], "parity"),
    ("attention: splits merged without their maxima", CPU + "attention.c", [
        ("s->alpha[r] = a->isa->exp(s->most[r] - all);", "s->alpha[r] = 1;")], "parity_synthetic"),
    ("decoding: split off by one", CPU + "decode.c", [
        ("for (uint32_t start = 0; start < tokens;", "for (uint32_t start = 0; start + 1 < tokens;")],
     "parity_synthetic"),
    ("decoding: stale block", CPU + "decode.c", [
        ("slot->table[slot->position / OCR_BLOCK_TOKENS]",
         "slot->table[(slot->position - !token) / OCR_BLOCK_TOKENS]")], "parity"),
    ("decoding: blocks of another slot", CPU + "decode.c", [
        ("k[n] = cpu_kv_block(b, slot->table[", "k[n] = cpu_kv_block(b, p->slots[0]->table[")],
     "parity_independence"),
    ("V of the page before left in a block", CPU + "tower.c", [
        ("        clear_v(p);\n", "        (void)clear_v;\n")], "parity_independence"),
    ("products: last tile lost", CPU + "matrix.c", [
        ("ocr_tensor_part(t, row, k, k + CPU_TILE < n ? CPU_TILE : n - k, out);",
         "memset(out, 0, CPU_TILE * sizeof *out);\n"
         "        if (k + CPU_TILE <= n)\n"
         "            ocr_tensor_part(t, row, k, CPU_TILE, out);")], "parity_synthetic"),
    ("products: rows left over are lost", CPU + "body.h", [
        ("    p = rows > at_once ? &once : p;\n    while (rows) {",
         "    p = rows > at_once ? &once : p;\n    while (rows == 1 || rows >= at_once) {")], "parity"),
    ("decoding: last block of V lost", CPU + "body.h", [
        ("const bool two = t + 1 < blocks;", "const bool two = t + 2 < blocks;")], "parity"),
    ("products: K and V cut instead of rounded", CPU + "matrix.h", [
        ("(u + 0x7fff + ((u >> 16) & 1)) >> 16", "u >> 16")], "parity"),
    ("SwiGLU: gate and up swapped", CPU + "body.h", [
        ("v_mul(silu(v_load(c)), v_load(c + 16))", "v_mul(silu(v_load(c + 16)), v_load(c))")],
     "parity"),
    ("no norm before the logits", CPU + "decode.c", [
        ("make_rows(&p, x, b->text_norm,", "make_rows(&p, x, NULL,")], "parity"),
    ("penalty over the prompt", CPU + "backend.c", [
        ("    s->open = true;\n", """    for (uint32_t i = 0; i < config->prompt_len; i++)
        s->seen[config->prompt[i] / 64] |= (uint64_t)1 << config->prompt[i] % 64;
    s->open = true;
""")], "parity_sampling"),
    ("penalty over the last id only", CPU + "backend.c", [
        ("s->seen[id / 64] |= ", "memset(s->seen, 0, (b->vocab + 63) / 64 * 8);\n"
         "    s->seen[id / 64] |= ")], "parity_sampling"),
    ("stop id among the ids", CPU + "backend.c", [
        ("        return CHOICE_STOP;\n    e->ids", "        s->config.max_tokens = 0;\n    e->ids")],
     "parity_sampling"),
]


def program(test):
    return f"build/opt/tests/unit/test_{test}"


def build(tests):
    out = subprocess.run(["make", "-s", "-j2", *map(program, sorted(tests))], cwd=TREE,
                         capture_output=True, text=True)
    if out.returncode:
        sys.exit(out.stderr)


def failing(test):
    arguments = [SMALL] if test == "parity" else []
    return faults.failing([program(test), *arguments], cwd=TREE, timeout=120)


def try_fault(fault, file, changes, test):
    with faults.put_in(TREE, fault, file, changes):
        build({test})
        return failing(test)


def main():
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    chosen = [f for f in FAULTS if wanted in f[0]]
    os.environ.pop("MAKEFLAGS", None)
    faults.copy_tree(TREE)
    tests = {f[-1] for f in chosen}
    build(tests)
    for test in sorted(tests):
        if failing(test):
            sys.exit(f"test_{test} fails without a fault")
    unseen, start = 0, time.monotonic()
    print(f"{'fault':46} {'file':24} seen by", flush=True)
    for fault, file, changes, test in chosen:
        seen = try_fault(fault, file, changes, test)
        unseen += seen is None
        faults.report(fault, file, test, seen)
    print(f"{len(chosen) - unseen} of {len(chosen)} faults are seen "
          f"({time.monotonic() - start:.0f} s)")
    return unseen > 0


if __name__ == "__main__":
    sys.exit(main())
