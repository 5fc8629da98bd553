#!/usr/bin/env python3
"""Makes tests/data/golden: what C must compute, as transformers and a float64
model say. `make golden` calls it; README.md beside this file describes it."""
import argparse
import gc
import hashlib
import json
import math
import platform
import sys
from pathlib import Path

import numpy as np
import PIL
import safetensors
import tokenizers
import torch
import transformers
from PIL import Image
from safetensors.numpy import load_file, save_file

import counter
import lighton64
import sketch
import torch_model

ROOT = Path(__file__).resolve().parents[2]
READER = ROOT / "tests/data/tiny-reader"
GOLDEN = ROOT / "tests/data/golden"
EDGE, MULTIPLE = 1540, 28
LIKELIEST = 16      # ids that are kept of each row
WHOLE_ROWS = 4      # of logits
WHOLE_TOKENS = 8    # of features
LEAST_GAP = 0.005   # between best and second: below it ids are chance
LIMIT = 2048        # ids a page
MEAN = [0.48145466, 0.4578275, 0.40821073]
STD = [0.26862954, 0.26130258, 0.27577711]


def resized(image):
    """Both sides up to multiples of 28, never above 1540 (Pillow's bicubic)."""
    width, height = image.size
    ratio = max(width / EDGE, height / EDGE)
    if ratio > 1:
        width, height = int(width / ratio), int(height / ratio)
    size = [(side - 1) // MULTIPLE * MULTIPLE + MULTIPLE for side in (width, height)]
    return np.asarray(image.resize(size, Image.Resampling.BICUBIC))


def relative(found, truth):
    """Relative L2 of all rows together, and of the worst."""
    off, norm = ((x * x).sum(-1) for x in (found - truth, truth))
    return math.sqrt(off.sum() / norm.sum()), math.sqrt((off / norm).max())


def spread(count, wanted):
    """Row numbers: the first, the last, and some between."""
    return np.unique(np.linspace(0, count - 1, min(count, wanted)).round().astype(int))


def log_sum(rows):
    top = rows.max(-1)
    return top + np.log(np.exp(rows - top[:, None]).sum(-1))


def log_p(rows, ids):
    """Of the ids of each row, and of all others as one: [rows][ids + 1]."""
    total = log_sum(rows)[:, None]
    others = rows.copy()
    np.put_along_axis(others, ids, -np.inf, 1)
    return np.concatenate([np.take_along_axis(rows, ids, 1) - total,
                           log_sum(others)[:, None] - total], 1)


def divergence(truth, found, ids):
    """Mean KL divergence over the ids of each row and all others as one."""
    p, q = log_p(truth, ids), log_p(found, ids)
    return float((np.exp(p) * (p - q)).sum(-1).mean())


def kept_rows(prefix, rows, wanted):
    """Tensors that stand for `rows`."""
    whole = spread(len(rows), wanted)
    return {
        prefix + "norms": np.linalg.norm(rows, axis=1).astype(np.float32),
        prefix + "sums": sketch.sums(rows).astype(np.float32),
        prefix + "whole": rows[whole].astype(np.float32),
        prefix + "whole_rows": whole.astype(np.int32),
    }


def kept_logits(rows):
    ids = np.argsort(-rows, 1, kind="stable")[:, :LIKELIEST]
    return kept_rows("logits_", rows, WHOLE_ROWS) | {
        "likeliest": ids.astype(np.int32),
        "likeliest_log_p": log_p(rows, ids).astype(np.float32),
    }


def gaps(rows, ids):
    return np.take_along_axis(rows, ids[:, :1], 1) - np.take_along_axis(rows, ids[:, 1:2], 1)


def against_bf16(model, rgb, ids, count, truth, likeliest):
    """How far transformers in bf16 is from the truth: bounds for C in bf16."""
    page = torch_model.Page(model, rgb, MEAN, STD)
    found = page.logits(ids, count)
    off = np.abs(gaps(found, likeliest) - gaps(truth, likeliest)).max()
    out = {"gap_error": float(off), "logits": relative(found, truth)[0],
           "kl": divergence(truth, found, likeliest)}
    # An id within the bound of the best must be among those that are kept.
    bound = max(0.5, 2 * off)
    least = np.take_along_axis(truth, likeliest[:, -1:], 1)
    if (truth.max(-1, keepdims=True) - least <= bound).any():
        sys.exit("more ids within the bound than are kept: raise LIKELIEST")
    return out


def recorded_bf16(name, tensors):
    """What was recorded of transformers in bf16 beside the same truth, or None:
    it depends on the processor, so that other ones do not change it."""
    path = GOLDEN / (name + ".safetensors")
    old = load_file(path) if path.exists() else {}
    bounds = old.pop("bf16", None)
    rows = json.loads((GOLDEN / "golden.json").read_text())["pages"] if old else []
    row = next((r for r in rows if r["name"] == name), None)
    same = old.keys() == tensors.keys() and all(old[k].tobytes() == t.tobytes() for k, t in tensors.items())
    if not same or row is None or not np.array_equal(bounds, as_bounds(row["bf16"])):
        return None
    return row["bf16"]


def as_bounds(row):
    return np.array([row[k] for k in ("gap_error", "logits", "kl")], np.float32)


def store(row, tensors):
    path = GOLDEN / (row["name"] + ".safetensors")
    save_file(tensors, path)
    path.chmod(0o644)
    print(row, flush=True)
    return row


def make_page(name, image, prompt, stop, models, exact):
    rgb = resized(image)
    mark, at = prompt["image"], prompt["at"]
    height, width = (side // MULTIPLE for side in rgb.shape[:2])
    front = prompt["ids"][:at] + [mark] * (width * height) + prompt["ids"][at:]
    page = torch_model.Page(models["fp32"], rgb, MEAN, STD)
    ids = page.generate(front, LIMIT, stop)
    count, forced = len(ids), front + ids[:-1]
    features = exact.encode(rgb, MEAN, STD)
    truth = exact.logits(forced, features, count)
    tensors = kept_logits(truth) | kept_rows("features_", features, WHOLE_TOKENS)
    likeliest = tensors["likeliest"].astype(int)
    least = gaps(truth, likeliest).min()
    if least < LEAST_GAP:
        where = int(gaps(truth, likeliest).argmin())
        sys.exit(f"{name}: best and second of id {where} are only {least:.4f} apart")
    if likeliest[:, 0].tolist() != ids:
        sys.exit(f"{name}: transformers and float64 differ in their ids")
    found, seen = page.logits(forced, count), page.features()
    tensors["ids"] = np.array(ids, np.int32)
    tensors["prompt"] = np.array(front, np.int32)
    tensors["size"] = np.array([rgb.shape[1], rgb.shape[0]], np.int32)
    bf16 = None if models["anew"] else recorded_bf16(name, tensors)
    bf16 = bf16 or against_bf16(models["bf16"], rgb, forced, count, truth, likeliest)
    row = {"name": name, "pixels": f"{rgb.shape[1]}x{rgb.shape[0]}", "ids": count,
           "stopped": ids[-1] in stop, "least_gap": float(least),
           "fp32": {"logits": relative(found, truth), "features": relative(seen, features)},
           "bf16": bf16}
    tensors["bf16"] = as_bounds(bf16)
    return store(row, tensors)


def reader_prompt(config):
    """The prompt of README.md of the checkpoint."""
    text = (READER / "README.md").read_text()
    line = next(x for x in text.split("\n") if x.startswith("Prompt:"))
    front, back = line.split("`")[1], line.split("`")[3]
    front, back = ([int(x) for x in part.split()] for part in (front, back))
    return {"ids": front + back, "at": len(front), "image": config["image_token_id"]}


def make_reader(only, anew):
    config = json.loads((READER / "config.json").read_text())
    generation = json.loads((READER / "generation_config.json").read_text())
    stop = generation["eos_token_id"]
    stop = stop if isinstance(stop, list) else [stop]
    models = {"fp32": torch_model.from_folder(READER, torch.float32),
              "bf16": torch_model.from_folder(READER, torch.bfloat16), "anew": anew}
    exact = lighton64.Model(config, lighton64.read_folder(READER))
    prompt = reader_prompt(config)
    paths = sorted((READER / "pages").glob("*.png")) + sorted(GOLDEN.glob("*.png"))
    return [make_page(path.stem, Image.open(path).convert("RGB"), prompt, stop, models, exact)
            for path in paths if only in path.stem]


def synthetic(text, vision, image_token):
    return {"model_type": "lighton_ocr", "image_token_id": image_token,
            "spatial_merge_size": 2, "tie_word_embeddings": True,
            "text_config": {"model_type": "qwen3", "rms_norm_eps": 1e-6,
                            "hidden_act": "silu", "tie_word_embeddings": True} | text,
            "vision_config": {"model_type": "pixtral", "hidden_act": "silu",
                              "num_channels": 3, "patch_size": 14} | vision}


def rope(kind, base):
    return {"rope_type": kind, "rope_theta": base}


# Also in tests/unit/counter.h. `odd` is the model of transformers' own unit
# test. `wide` has the widths and the vocabulary of LightOnOCR-2-1B, two layers
# each.
SYNTHETIC = {
    "odd": (synthetic(
        dict(vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=8, intermediate_size=37,
             max_position_embeddings=1024, rope_parameters=rope("default", 1e4)),
        dict(image_size=112, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
             head_dim=8, intermediate_size=37, rope_parameters=rope("axial", 1e4)), 10),
        [("odd", 112, 84, 300), ("odd-small", 28, 28, 20)]),
    "wide": (synthetic(
        dict(vocab_size=151936, hidden_size=1024, num_hidden_layers=2,
             num_attention_heads=16, num_key_value_heads=8, head_dim=128,
             intermediate_size=3072, max_position_embeddings=16384,
             rope_parameters=rope("default", 1e6)),
        dict(image_size=1540, hidden_size=1024, num_hidden_layers=2,
             num_attention_heads=16, head_dim=64, intermediate_size=4096,
             rope_parameters=rope("axial", 1e4)), 151655),
        [("wide", 140, 84, 32)]),
}


def make_synthetic(case, config, tensors, model):
    name, width, height, count = case
    vocab, mark = config["text_config"]["vocab_size"], config["image_token_id"]
    rgb = counter.pixels(name + ".pixels", width, height)
    ids = counter.ids(name + ".ids", 12 + count, vocab, mark).tolist()
    image = [mark] * (width // MULTIPLE * (height // MULTIPLE))
    forced = ids[:7] + image + ids[7:-1]
    exact = lighton64.Model(config, tensors)
    features = exact.encode(rgb, MEAN, STD)
    truth = exact.logits(forced, features, count)
    page = torch_model.Page(model, rgb, MEAN, STD)
    row = {"name": name, "pixels": f"{width}x{height}", "ids": count,
           "fp32": {"logits": relative(page.logits(forced, count), truth),
                    "features": relative(page.features(), features)}}
    kept = kept_logits(truth) | kept_rows("features_", features, WHOLE_TOKENS)
    if name == "wide":  # one row of this vocabulary has 600 KB
        kept |= kept_rows("logits_", truth, 1)
    return store(row, kept)


def make_synthetics(only):
    rows = []
    for name, (config, cases) in SYNTHETIC.items():
        if only in name:
            tensors = counter.weights(config)
            model = torch_model.from_tensors(config, tensors, torch.float32)
            rows += [make_synthetic(case, config, tensors, model) for case in cases]
            del tensors, model
            gc.collect()
    return rows


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def record(rows):
    """tests/data/golden/golden.json: what was made, from what, with what."""
    files = [*READER.glob("*.safetensors"), *READER.glob("*.json"),
             *READER.glob("pages/*.png"), *GOLDEN.glob("*.png")]
    out = {
        "versions": {"python": platform.python_version()}
        | {module.__name__: module.__version__
           for module in (torch, transformers, tokenizers, safetensors, np, PIL)},
        "settings": {"attention": torch_model.ATTENTION, "tf32": False,
                     "multiple": MULTIPLE, "longest_edge": EDGE, "limit": LIMIT,
                     "least_gap": LEAST_GAP},
        "sha256": {str(p.relative_to(ROOT)): sha256(p) for p in sorted(files)},
        "pages": rows,
    }
    (GOLDEN / "golden.json").write_text(json.dumps(out, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="?", default="",
                        help="a part of a page's name: try it, record nothing")
    parser.add_argument("--bf16", action="store_true",
                        help="measure transformers in bf16 anew, on this processor")
    args = parser.parse_args()
    only = args.only
    rows = make_synthetics(only) + make_reader(only, args.bf16)
    if not only:
        record(rows)


if __name__ == "__main__":
    main()
