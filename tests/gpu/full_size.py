#!/usr/bin/env python3
"""A model of LightOnOCR-2-1B's size, made of a seed so that faults show, against
transformers on the same card: how far the GPU backend is off float32, beside
how far transformers in bf16 is, stage by stage; then the times of both.

    full_size.py BUILD WORK [SEED]

Prints lines "RESULT {json}" for tests/gpu/run.
"""
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
import transformers
from PIL import Image
from safetensors.torch import save_file
from transformers import LightOnOcrConfig, LightOnOcrForConditionalGeneration

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "tests/data/tiny-reader/pages/page-12-1092x1540.png"
LAYERS = {"patches": 900, "vision 1": 0, "vision 12": 11, "vision 24": 23,
          "text 1": 1000, "text 14": 1013, "text 28": 1027}
IMAGE, STEPS = 151655, 24
MEAN = [0.48145466, 0.4578275, 0.40821073]
STD = [0.26862954, 0.26130258, 0.27577711]
SHARE, WORST = 0.9, 1.5  # of what transformers in bf16 is off

CONFIG = {
    "architectures": ["LightOnOcrForConditionalGeneration"],
    "dtype": "bfloat16", "image_token_id": IMAGE, "model_type": "lighton_ocr",
    "spatial_merge_size": 2, "tie_word_embeddings": True, "eos_token_id": 151645,
    "text_config": {
        "model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
        "intermediate_size": 3072, "vocab_size": 151936, "hidden_act": "silu",
        "max_position_embeddings": 16384, "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
        "tie_word_embeddings": True, "attention_bias": False},
    "vision_config": {
        "model_type": "pixtral", "hidden_size": 1024, "num_hidden_layers": 24,
        "num_attention_heads": 16, "head_dim": 64, "intermediate_size": 4096,
        "image_size": 1540, "patch_size": 14, "num_channels": 3, "hidden_act": "silu",
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "axial"}}}


def result(what, found, bound="", good=True):
    print("RESULT " + json.dumps(dict(what=what, found=found, bound=bound, good=bool(good))),
          flush=True)


# ---- the model --------------------------------------------------------------

def fill(name, parameter, generator):
    """Spread so that every part counts."""
    if parameter.ndim == 1:
        low, high = {"q_norm": (1, 2.5), "k_norm": (0.5, 2)}.get(name.split(".")[-2], (0.5, 1.5))
        parameter.uniform_(low, high, generator=generator)
    else:
        sharp = "vision" in name and re.search(r"\.[qk]_proj\.", name)
        parameter.normal_(0, 0.052 if sharp else 0.02, generator=generator)


def make_folder(folder, seed):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [151645, 151643], "pad_token_id": 151643}))
    for name in ("preprocessor_config.json",):
        shutil.copy(ROOT / "tests/data/tiny-reader" / name, folder)
    with gzip.open(ROOT / "tests/data/qwen3-tokenizer.json.gz") as f:
        (folder / "tokenizer.json").write_bytes(f.read())
    with torch.device("cuda"):
        model = LightOnOcrForConditionalGeneration(LightOnOcrConfig(**CONFIG)).to(torch.bfloat16)
    generator = torch.Generator("cuda").manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            fill(name, parameter, generator)
    state = {n: t.detach().cpu().contiguous() for n, t in model.state_dict().items()
             if n != "lm_head.weight"}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def load(folder, dtype):
    model = LightOnOcrForConditionalGeneration.from_pretrained(
        folder, dtype=dtype, attn_implementation="sdpa").cuda().eval()
    for name, buffer in model.named_buffers():
        assert "inv_freq" not in name or buffer.dtype == torch.float32, name
    return model


def pixels():
    rgb = np.asarray(Image.open(PAGE).convert("RGB"))
    x = (rgb * (1 / 255)).astype(np.float32)
    x = (x - np.array(MEAN, np.float32)) / np.array(STD, np.float32)
    return {"pixel_values": torch.from_numpy(x.transpose(2, 0, 1)[None].copy()).cuda(),
            "image_sizes": torch.tensor([rgb.shape[:2]])}, rgb.shape[0] // 28 * (rgb.shape[1] // 28)


def prompt_ids(folder, count):
    from tokenizers import Tokenizer
    encode = Tokenizer.from_file(str(folder / "tokenizer.json")).encode
    front = "<|im_start|>system<|im_end|>\n<|im_start|>user\n"
    back = "<|im_end|>\n<|im_start|>assistant\n"
    return (encode(front, add_special_tokens=False).ids + [IMAGE] * count
            + encode(back, add_special_tokens=False).ids)


# ---- what transformers computes ---------------------------------------------

def watch(model):
    """Hooks that keep the residual stream of the stages in LAYERS."""
    kept, vision, text = {}, model.model.vision_encoder, model.model.language_model
    places = {"patches": vision.ln_pre, "features": model.model.vision_projection}
    for name, number in LAYERS.items():
        if number < 900:
            places[name] = vision.transformer.layers[number]
        elif number >= 1000:
            places[name] = text.layers[number - 1000]

    def keep(name):
        def hook(_, __, out):
            out = out[0] if isinstance(out, (tuple, list)) else out
            kept[name] = out.reshape(-1, out.shape[-1]).float().cpu().numpy()
        return hook

    for name, module in places.items():
        module.register_forward_hook(keep(name))
    return kept


@torch.no_grad()
def stages(model, image, ids, last):
    kept = watch(model)
    image = dict(image, pixel_values=image["pixel_values"].to(model.dtype))
    out = model(input_ids=torch.tensor([ids]).cuda(), **image, logits_to_keep=last)
    kept["logits"] = out.logits[0].float().cpu().numpy()
    return kept


def distance(found, truth):
    found, truth = found.astype(np.float64), truth.astype(np.float64)
    off, norm = ((x * x).sum(-1) for x in (found - truth, truth))
    return float(np.sqrt(off.sum() / norm.sum())), float(np.sqrt((off / norm).max()))


# ---- ours -------------------------------------------------------------------

def ocr_model(build, *args):
    lib = {"LD_LIBRARY_PATH": str(build / "lib")} if (build / "lib").is_dir() else {}
    done = subprocess.run([str(build / "tests/tools/ocr-model"), *map(str, args)], cwd=ROOT,
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env=dict(os.environ, **lib))
    if done.returncode:
        print(done.stdout[-2000:])
        sys.exit("ocr-model failed")
    return done.stdout


def ours(build, folder, work, ids, precision, device):
    forced = work / "forced"
    forced.write_text(" ".join(map(str, ids)))
    numbers = ",".join(str(n) for n in LAYERS.values())
    print(ocr_model(build, "-d", device, "-p", precision, "-q", "-f", forced, "-o", work / "ours",
                    "-L", numbers, folder, PAGE))
    kept = {}
    for name, number in LAYERS.items():
        kept[name] = np.fromfile(work / f"ours.0.layer{number}", np.float32).reshape(-1, 1024)
    kept["features"] = np.fromfile(work / "ours.0.features", np.float32).reshape(-1, 1024)
    kept["logits"] = np.fromfile(work / "ours.0.logits", np.float32).reshape(len(ids), -1)
    return kept


def compare(truth, reference, found, label):
    for name in ["patches", "vision 1", "vision 12", "vision 24", "features",
                 "text 1", "text 14", "text 28", "logits"]:
        a, b = distance(reference[name], truth[name]), distance(found[name], truth[name])
        # The tap of a text layer may have rows of decode steps, too.
        good = b[0] <= SHARE * a[0] and b[1] <= WORST * a[1]
        result(f"{label}: {name}", "%.2e worst %.2e" % b,
               "%.2e %.2e (%.2f %.2f)" % (SHARE * a[0], WORST * a[1], b[0] / a[0], b[1] / a[1]),
               good)


# ---- times ------------------------------------------------------------------

def median_ms(call, repeats):
    times = []
    for _ in range(repeats + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - start))
    return sorted(times[1:])[repeats // 2]


@torch.no_grad()
def reference_times(model, image, ids):
    image = dict(image, pixel_values=image["pixel_values"].to(model.dtype))
    prompt = torch.tensor([ids]).cuda()
    vision = median_ms(lambda: model.get_image_features(**image), 5)
    first = median_ms(lambda: model(input_ids=prompt, **image, logits_to_keep=1), 5)
    cache = model(input_ids=prompt, **image, logits_to_keep=1, use_cache=True).past_key_values
    token = torch.tensor([[1234]]).cuda()
    step = median_ms(lambda: model(input_ids=token, past_key_values=cache, use_cache=True), 20)
    return vision, first, step


def main():
    build, work = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    folder = work / "full-size"
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    transformers.logging.set_verbosity_error()
    make_folder(folder, int(sys.argv[3]) if len(sys.argv) > 3 else 1)
    image, count = pixels()
    prompt = prompt_ids(folder, count)
    generator = np.random.default_rng(5)
    forced = [int(i) for i in generator.integers(0, 151000, STEPS)]
    ids = prompt + forced[:-1]
    model = load(folder, torch.float32)
    truth = stages(model, image, ids, STEPS)
    del model
    model = load(folder, torch.bfloat16)
    reference = stages(model, image, ids, STEPS)
    times = reference_times(load(folder, torch.bfloat16), image, prompt)
    del model
    torch.cuda.empty_cache()
    found = ours(build, folder, work, forced, "bf16", "cuda")
    for kept in (truth, reference):  # rows of the prompt and the steps behind it
        for name in LAYERS:
            kept[name] = kept[name][:len(found[name])]
    compare(truth, reference, found, "bf16")
    half = ours(build, folder, work, forced, "fp16", "cuda")
    compare(truth, reference, half, "fp16")
    text = ocr_model(build, "-d", "cuda", "-q", "-l", 200, folder, PAGE, PAGE)
    vision = 1000 * float(re.findall(r"encode ([\d.]+) s", text)[-1])
    prefill = 1000 * float(re.findall(r"prefill ([\d.]+) s", text)[-1])
    step = float(re.findall(r"([\d.]+) ms a step", text)[-1])
    for what, mine, its in (("vision", vision, times[0]), ("first token", vision + prefill, times[1]),
                            ("a step, eager", step, times[2])):
        result(f"beside transformers: {what}", "%.2f ms" % mine, "%.2f ms" % its, mine <= its)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
