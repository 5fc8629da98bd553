#!/usr/bin/env python3
"""A model folder of LightOnOCR-2-1B's size whose weights are drawn from a seed:
for measurements, where it matters how much there is to compute, and not what.

    full_model.py FOLDER [SEED]

With SEED - the weights are a hole in the file: enough to plan memory by."""
import gzip
import json
import random
import shutil
import struct
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
H, FFN, VOCAB = 1024, 4096, 151936
LAYERS, VISION_LAYERS = 28, 24
CONFIG = {
    "architectures": ["LightOnOcrForConditionalGeneration"], "dtype": "bfloat16",
    "image_token_id": 151655, "model_type": "lighton_ocr", "spatial_merge_size": 2,
    "tie_word_embeddings": True, "eos_token_id": 151645,
    "text_config": {
        "model_type": "qwen3", "hidden_size": H, "num_hidden_layers": LAYERS,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
        "intermediate_size": 3072, "vocab_size": VOCAB, "hidden_act": "silu",
        "max_position_embeddings": 16384, "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
        "tie_word_embeddings": True, "attention_bias": False},
    "vision_config": {
        "model_type": "pixtral", "hidden_size": H, "num_hidden_layers": VISION_LAYERS,
        "num_attention_heads": 16, "head_dim": 64, "intermediate_size": FFN,
        "image_size": 1540, "patch_size": 14, "num_channels": 3, "hidden_act": "silu",
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "axial"}}}


def shapes():
    v, p, t = "model.vision_encoder.", "model.vision_projection.", "model.language_model."
    yield v + "patch_conv.weight", [H, 3, 14, 14]
    yield v + "ln_pre.weight", [H]
    for i in range(VISION_LAYERS):
        at = v + "transformer.layers.%d." % i
        yield at + "attention_norm.weight", [H]
        yield at + "ffn_norm.weight", [H]
        for c in "qkvo":
            yield at + "attention.%s_proj.weight" % c, [H, H]
        yield at + "feed_forward.gate_proj.weight", [FFN, H]
        yield at + "feed_forward.up_proj.weight", [FFN, H]
        yield at + "feed_forward.down_proj.weight", [H, FFN]
    yield p + "norm.weight", [H]
    yield p + "patch_merger.merging_layer.weight", [H, 4 * H]
    yield p + "linear_1.weight", [H, H]
    yield p + "linear_2.weight", [H, H]
    yield t + "embed_tokens.weight", [VOCAB, H]
    yield t + "norm.weight", [H]
    for i in range(LAYERS):
        at = t + "layers.%d." % i
        yield at + "input_layernorm.weight", [H]
        yield at + "post_attention_layernorm.weight", [H]
        yield at + "self_attn.q_proj.weight", [2048, H]
        yield at + "self_attn.k_proj.weight", [1024, H]
        yield at + "self_attn.v_proj.weight", [1024, H]
        yield at + "self_attn.o_proj.weight", [H, 2048]
        yield at + "self_attn.q_norm.weight", [128]
        yield at + "self_attn.k_norm.weight", [128]
        yield at + "mlp.gate_proj.weight", [3072, H]
        yield at + "mlp.up_proj.weight", [3072, H]
        yield at + "mlp.down_proj.weight", [H, 3072]


def count_of(shape):
    count = 1
    for side in shape:
        count *= side
    return count


# The upper byte of a bfloat16 by a random byte: for matrices +-2^-6, for norms
# 1; and the lower one: the exponent's last bit set, the rest free.
MATRIX = bytes(0xbc if i & 1 else 0x3c for i in range(256))
NORM = bytes(256 * [0x3f])
LOWER = bytes(i | 0x80 for i in range(256))


def values(draw, shape):
    count = count_of(shape)
    out = bytearray(2 * count)
    out[0::2] = draw.randbytes(count).translate(LOWER)
    out[1::2] = draw.randbytes(count).translate(NORM if len(shape) == 1 else MATRIX)
    return out


def write_weights(path, seed):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in shapes():
        end = at + 2 * count_of(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        if seed == "-":
            f.truncate(8 + len(text) + at)
            return
        draw = random.Random(int(seed))
        for _, shape in shapes():
            f.write(values(draw, shape))


def make_folder(folder, seed="1"):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [151645, 151643], "pad_token_id": 151643}))
    shutil.copy(ROOT / "tests/data/tiny-reader/preprocessor_config.json", folder)
    with gzip.open(ROOT / "tests/data/qwen3-tokenizer.json.gz") as f:
        (folder / "tokenizer.json").write_bytes(f.read())
    write_weights(folder / "model.safetensors", seed)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    make_folder(*sys.argv[1:])
