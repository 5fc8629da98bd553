"""kernels/cuda/ops.h for Python: structures, functions, checked calls.

Tensors are torch's, on the GPU; a call takes them by their addresses.
"""
import ctypes as c

import torch

BF16, FP16 = 0, 1
SPLIT, BLOCK, DIM = 256, 16, 128
ENDED, RUNNING, LAST, STOPPED, BAD, CANCELLED = range(6)
FEATURE = 0x80000000
HALVES = {torch.bfloat16: BF16, torch.float16: FP16}


class Shape(c.Structure):
    _fields_ = [(n, c.c_uint32) for n in (
        "patch", "merge", "vision_hidden", "vision_head_dim", "vision_inner",
        "projector_hidden", "text_hidden", "text_heads", "text_kv_heads",
        "text_head_dim", "text_inner", "vocab")]


class KV(c.Structure):
    _fields_ = [("data", c.c_void_p), ("blocks", c.c_uint32),
                ("layers", c.c_uint32), ("kv_heads", c.c_uint32)]


class Prefill(c.Structure):
    _fields_ = [("kv", KV), ("layer", c.c_uint32), ("heads", c.c_uint32),
                ("first", c.c_uint32), ("rows", c.c_uint32),
                ("table", c.c_void_p), ("q_norm", c.c_void_p),
                ("k_norm", c.c_void_p), ("cosine", c.c_void_p),
                ("sine", c.c_void_p), ("eps", c.c_float)]


class Slot(c.Structure):
    _fields_ = [("status", c.c_uint32), ("position", c.c_uint32),
                ("last", c.c_uint32), ("generated", c.c_uint32),
                ("limit", c.c_uint32), ("keep", c.c_uint32),
                ("poison_at", c.c_uint32), ("stop_count", c.c_uint32),
                ("stop_ids", c.c_uint32 * 8), ("forced", c.c_void_p),
                ("seed", c.c_uint64), ("page_hash", c.c_uint64),
                ("temperature", c.c_float), ("top_p", c.c_float),
                ("penalty", c.c_float), ("reserved", c.c_uint32)]


class Out(c.Structure):
    _fields_ = [("hash", c.c_uint64), ("id", c.c_uint32),
                ("status", c.c_uint32)]


class TextLayer(c.Structure):
    _fields_ = [(n, c.c_void_p) for n in (
        "input_norm", "post_norm", "q_norm", "k_norm", "qkv", "o", "gate_up",
        "down")]


class Decode(c.Structure):
    _fields_ = [("half", c.c_int), ("layers", c.c_uint32),
                ("hidden", c.c_uint32), ("heads", c.c_uint32),
                ("inner", c.c_uint32), ("vocab", c.c_uint32),
                ("eps", c.c_float), ("layer", c.POINTER(TextLayer)),
                ("norm", c.c_void_p), ("embedding", c.c_void_p),
                ("head", c.c_void_p), ("cosine", c.c_void_p),
                ("sine", c.c_void_p), ("kv", KV), ("tables", c.c_void_p),
                ("slots", c.c_uint32), ("slot_blocks", c.c_uint32),
                ("rows", c.c_void_p), ("slot", c.c_void_p),
                ("seen", c.c_void_p), ("out", c.c_void_p),
                ("ring", c.c_uint32), ("cancel", c.c_void_p),
                ("hashes", c.c_uint32), ("x", c.c_void_p),
                ("logits", c.c_void_p), ("scratch", c.c_void_p)]


def argument(x):
    if x is None:
        return c.c_void_p(None)
    if isinstance(x, torch.Tensor):
        assert x.is_cuda and x.is_contiguous()
        return c.c_void_p(x.data_ptr())
    if isinstance(x, float):
        return c.c_float(x)
    return x


class Ops:
    """lib.rmsnorm(...) calls cuda_rmsnorm on torch's current stream and checks
    what it returns."""

    def __init__(self, path):
        self.lib = c.CDLL(path)
        self.lib.cuda_decode_scratch.restype = c.c_size_t
        self.lib.cuda_ops_refusal.restype = c.c_char_p

    def __getattr__(self, name):
        call = getattr(self.lib, "cuda_" + name)

        def checked(*args):
            stream = c.c_void_p(torch.cuda.current_stream().cuda_stream)
            rc = call(stream, *[argument(a) for a in args])
            assert rc == 0, f"{name}: CUDA error {rc}"
        return checked
