"""LightOnOCR in numpy and float64: the truth that others are measured by.

Written from the description of the model, not from anybody's code. What belongs
to the definition of the model is kept as it is defined: pixels normalised in
float32, RoPE frequencies and angles rounded to float32. All else is float64.
"""
import json
import math
import struct
from pathlib import Path

import numpy as np

F32 = np.float32
DTYPES = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32}


def read_safetensors(path):
    """name -> array, bf16 widened to float32."""
    raw = np.memmap(path, np.uint8, "r")
    length = struct.unpack("<Q", raw[:8].tobytes())[0]
    header = json.loads(raw[8:8 + length].tobytes())
    tensors = {}
    for name, t in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + o for o in t["data_offsets"])
        values = np.frombuffer(raw[begin:end].tobytes(), DTYPES[t["dtype"]])
        if t["dtype"] == "BF16":
            values = (values.astype(np.uint32) << 16).view(np.float32)
        tensors[name] = values.reshape(t["shape"])
    return tensors


def read_folder(folder):
    tensors = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        tensors.update(read_safetensors(path))
    return tensors


def theta(config):
    return config.get("rope_parameters", config)["rope_theta"]


def frequencies(base, dim):
    """1 / base^(2i / dim), each step rounded to float32."""
    exponent = (np.arange(0, dim, 2) / dim).astype(F32)
    power = np.power(float(base), exponent.astype(np.float64)).astype(F32)
    return F32(1) / power


def rms_norm(x, weight, eps):
    return weight * x / np.sqrt(np.mean(x * x, -1, keepdims=True) + eps)


def silu(x):
    return x / (1 + np.exp(-x))


def gelu(x):
    erf = np.fromiter(map(math.erf, (x / math.sqrt(2)).ravel()), float, x.size)
    return x / 2 * (1 + erf.reshape(x.shape))


def rotate(x, angle):
    """x [tokens][heads][dim], angle [tokens][dim / 2]; pairs (i, i + dim/2)."""
    cos = np.cos(angle.astype(np.float64))[:, None]
    sin = np.sin(angle.astype(np.float64))[:, None]
    a, b = np.split(x, 2, -1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def attention(q, k, v, causal, rows=512):
    """[tokens][heads][dim] each; a query head uses kv head h / (ratio)."""
    n, heads, dim = q.shape
    ratio = heads // k.shape[1]
    out = np.empty_like(q)
    for h in range(heads):
        keys, values = k[:, h // ratio], v[:, h // ratio]
        for at in range(0, n, rows):
            end = min(n, at + rows)
            seen = end if causal else n
            s = q[at:end, h] @ keys[:seen].T / math.sqrt(dim)
            if causal:
                s[np.arange(seen) > np.arange(at, end)[:, None]] = -np.inf
            s -= s.max(-1, keepdims=True)
            np.exp(s, out=s)
            out[at:end, h] = s @ values[:seen] / s.sum(-1, keepdims=True)
    return out.reshape(n, heads * dim)


class Model:
    """`config` as in config.json; `tensors` under their published names."""

    def __init__(self, config, tensors):
        self.vision, self.text = config["vision_config"], config["text_config"]
        self.merge = config.get("spatial_merge_size", 2)
        self.image_token = config["image_token_id"]
        self.tensors = tensors

    def weight(self, name):
        return self.tensors[f"model.{name}.weight"].astype(np.float64)

    def linear(self, x, name):
        return x @ self.weight(name).T

    def mlp(self, x, name):
        gate = silu(self.linear(x, name + ".gate_proj"))
        return self.linear(gate * self.linear(x, name + ".up_proj"),
                           name + ".down_proj")

    def heads(self, x, name, dim):
        return self.linear(x, name).reshape(len(x), -1, dim)

    def encode(self, rgb, mean, std):
        """Features of a page: uint8 [height][width][3] -> [tokens][hidden]."""
        cfg = self.vision
        patch, hidden = cfg["patch_size"], cfg["hidden_size"]
        pixels = (rgb * (1 / 255)).astype(F32)
        pixels = (pixels - np.array(mean, F32)) / np.array(std, F32)
        rows, cols = (side // patch for side in rgb.shape[:2])
        x = pixels.astype(np.float64).reshape(rows, patch, cols, patch, 3)
        x = x.transpose(0, 2, 4, 1, 3).reshape(rows * cols, -1)
        x = x @ self.weight("vision_encoder.patch_conv").reshape(hidden, -1).T
        x = rms_norm(x, self.weight("vision_encoder.ln_pre"), 1e-5)
        dim = hidden // cfg["num_attention_heads"]
        f = frequencies(theta(cfg), dim)
        row, col = (i.reshape(-1, 1) for i in np.indices((rows, cols)))
        angle = np.concatenate([row.astype(F32) * f[0::2],
                                col.astype(F32) * f[1::2]], 1)
        for i in range(cfg["num_hidden_layers"]):
            x = self.vision_layer(x, f"vision_encoder.transformer.layers.{i}",
                                  dim, angle)
        return self.project(x, rows, cols)

    def vision_layer(self, x, at, dim, angle):
        a = rms_norm(x, self.weight(at + ".attention_norm"), 1e-5)
        q, k, v = (self.heads(a, f"{at}.attention.{p}_proj", dim)
                   for p in "qkv")
        a = attention(rotate(q, angle), rotate(k, angle), v, causal=False)
        x = x + self.linear(a, at + ".attention.o_proj")
        b = rms_norm(x, self.weight(at + ".ffn_norm"), 1e-5)
        return x + self.mlp(b, at + ".feed_forward")

    def project(self, x, rows, cols):
        at, m = "vision_projection", self.merge
        x = rms_norm(x, self.weight(at + ".norm"), self.text["rms_norm_eps"])
        x = x.reshape(rows, cols, -1)[:rows // m * m, :cols // m * m]
        x = x.reshape(rows // m, m, cols // m, m, -1)
        # Channel outermost, then the row in the square, then the column.
        x = x.transpose(0, 2, 4, 1, 3).reshape((rows // m) * (cols // m), -1)
        x = self.linear(x, at + ".patch_merger.merging_layer")
        return self.linear(gelu(self.linear(x, at + ".linear_1")),
                           at + ".linear_2")

    def logits(self, ids, features, last):
        """Logits behind each of the `last` last ids: [last][vocab]."""
        cfg = self.text
        embedding = self.weight("language_model.embed_tokens")
        ids = np.asarray(ids)
        x = embedding[ids]
        x[ids == self.image_token] = features
        dim, eps = cfg["head_dim"], cfg["rms_norm_eps"]
        angle = (np.arange(len(ids), dtype=F32)[:, None]
                 * frequencies(theta(cfg), dim))
        for i in range(cfg["num_hidden_layers"]):
            x = self.text_layer(x, f"language_model.layers.{i}", dim, eps,
                                angle)
        x = rms_norm(x[-last:], self.weight("language_model.norm"), eps)
        head = self.tensors.get("lm_head.weight")
        return x @ (embedding if head is None else head.astype(float)).T

    def text_layer(self, x, at, dim, eps, angle):
        a = rms_norm(x, self.weight(at + ".input_layernorm"), eps)
        q, k, v = (self.heads(a, f"{at}.self_attn.{p}_proj", dim)
                   for p in "qkv")
        q = rms_norm(q, self.weight(at + ".self_attn.q_norm"), eps)
        k = rms_norm(k, self.weight(at + ".self_attn.k_norm"), eps)
        a = attention(rotate(q, angle), rotate(k, angle), v, causal=True)
        x = x + self.linear(a, at + ".self_attn.o_proj")
        b = rms_norm(x, self.weight(at + ".post_attention_layernorm"), eps)
        return x + self.mlp(b, at + ".mlp")
