"""Weights, pixels and ids from a counter: the same in tests/unit/counter.h, so
that a model of any size needs no file.

Value i of a tensor is a hash of (name, i), turned into a number that bf16 holds
exactly."""
import numpy as np

U64 = np.uint64


def mix(x):
    """The output function of SplitMix64, on uint64 arrays."""
    with np.errstate(over="ignore"):
        x = (x + U64(1)) * U64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> U64(30))) * U64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> U64(27))) * U64(0x94D049BB133111EB)
        return x ^ (x >> U64(31))


def seed(name):
    """FNV-1a of the name."""
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = (h ^ byte) * 0x100000001B3 & (1 << 64) - 1
    return h


def stream(name, count):
    """64 bits each."""
    with np.errstate(over="ignore"):
        return mix(np.arange(count, dtype=U64) + U64(seed(name)))


def matrix(name, rows, cols):
    """Odd 256ths between -1 and 1, times a power of two near 2 / sqrt(cols);
    smaller ones for patches, so that the epsilon of the first norm counts."""
    k = (stream(name, rows * cols) >> U64(56)).astype(np.float32)
    scale = 2.0 ** -max(0, (cols.bit_length() - 1) // 2 - 1)
    scale /= 64 if "patch_conv" in name else 1
    return ((2 * k - 255) / 256 * scale).reshape(rows, cols).astype(np.float32)


def vector(name, count):
    """128ths from 0.5 to below 1.5: the weights of a norm."""
    k = (stream(name, count) >> U64(57)).astype(np.float32)
    return 1 + (k - 64) / np.float32(128)


def pixels(name, width, height):
    k = stream(name, width * height * 3) >> U64(56)
    return k.astype(np.uint8).reshape(height, width, 3)


def ids(name, count, vocab, never):
    """Ids other than `never`."""
    values = (stream(name, count) >> U64(32)) % U64(vocab)
    values = values.astype(np.int64)
    return np.where(values == never, (values + 1) % vocab, values)


def shapes(config):
    """Published name -> shape, of every tensor; the head is tied."""
    v, t = config["vision_config"], config["text_config"]
    q = t["num_attention_heads"] * t["head_dim"]
    kv = t["num_key_value_heads"] * t["head_dim"]
    h, vh, p = t["hidden_size"], v["hidden_size"], v["patch_size"]
    out = {
        "vision_encoder.patch_conv": (vh, 3 * p * p),
        "vision_encoder.ln_pre": (vh,),
        "vision_projection.norm": (vh,),
        "vision_projection.patch_merger.merging_layer": (vh, 4 * vh),
        "vision_projection.linear_1": (h, vh),
        "vision_projection.linear_2": (h, h),
        "language_model.embed_tokens": (t["vocab_size"], h),
        "language_model.norm": (h,),
    }
    for i in range(v["num_hidden_layers"]):
        at, mlp = f"vision_encoder.transformer.layers.{i}.", v["intermediate_size"]
        out |= {at + f"attention.{x}_proj": (vh, vh) for x in "qkvo"}
        out |= {at + "attention_norm": (vh,), at + "ffn_norm": (vh,)}
        out |= {at + f"feed_forward.{x}_proj": (mlp, vh) for x in ("gate", "up")}
        out[at + "feed_forward.down_proj"] = (vh, mlp)
    for i in range(t["num_hidden_layers"]):
        at, mlp = f"language_model.layers.{i}.", t["intermediate_size"]
        out |= {at + "self_attn.q_proj": (q, h), at + "self_attn.o_proj": (h, q),
                at + "self_attn.k_proj": (kv, h), at + "self_attn.v_proj": (kv, h)}
        out |= {at + f"self_attn.{x}_norm": (t["head_dim"],) for x in "qk"}
        out |= {at + "input_layernorm": (h,), at + "post_attention_layernorm": (h,)}
        out |= {at + f"mlp.{x}_proj": (mlp, h) for x in ("gate", "up")}
        out[at + "mlp.down_proj"] = (h, mlp)
    return out


def weights(config):
    """All tensors of a model, under their published names, as float32."""
    out = {}
    for name, shape in shapes(config).items():
        name = f"model.{name}.weight"
        out[name] = vector(name, *shape) if len(shape) == 1 else matrix(name, *shape)
    return out
