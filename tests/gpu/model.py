"""A decoder with random weights, for tests/gpu/test_ops.py: its memory as
kernels/cuda/ops.h wants it, and the same layer in torch."""
import ctypes as c

import numpy as np
import torch
import torch.nn.functional as F

import ops as o


def unswizzle(blocks):
    """[..][16 tokens][128] as it lies in the cache."""
    token = torch.arange(16, device=blocks.device)[:, None]
    piece = torch.arange(16, device=blocks.device)[None] ^ (token & 7)
    pieces = blocks.reshape(*blocks.shape[:-1], 16, 8)
    index = piece[..., None].expand(16, 16, 8).expand(pieces.shape)
    return torch.gather(pieces, -2, index).reshape(blocks.shape)


class Page:
    """The cache of one page, its blocks in random order."""

    def __init__(self, tokens, layers, kv_heads, half, generator):
        count = (tokens + 15) // 16
        self.tokens, self.heads = tokens, kv_heads
        self.data = torch.full((layers, count + 3, kv_heads, 2, 16, 128),
                               float("nan"), device="cuda", dtype=half)
        self.table = torch.randperm(count + 3, device="cuda",
                                    generator=generator)[:count].to(
                                        torch.int32)
        self.kv = o.KV(self.data.data_ptr(), count + 3, layers, kv_heads)

    def read(self, layer):
        """k and v [tokens][heads][128]"""
        blocks = unswizzle(self.data[layer][self.table.long()])
        rows = blocks.permute(2, 0, 3, 1, 4).reshape(2, -1, self.heads, 128)
        return rows[0, :self.tokens], rows[1, :self.tokens]


class Cache:
    pass


class Text:
    def __init__(self, lib, half, generator, layers, heads, kv_heads, hidden,
                 inner, vocab, slots, longest):
        self.lib, self.half, self.generator = lib, half, generator
        self.heads, self.kv_heads = heads, kv_heads
        self.hidden, self.inner, self.vocab = hidden, inner, vocab
        self.slots, self.count_layers = slots, layers
        self.slot_blocks = (longest + 15) // 16
        self.keep = []
        self.layers = (o.TextLayer * layers)()
        self.weights = [self.make_layer(i) for i in range(layers)]
        self.norm = self.gains(0.5, 1.5, hidden)
        self.head = self.matrix(vocab, hidden)
        angle = torch.outer(
            torch.arange(self.slot_blocks * 16, device="cuda").double(),
            1 / 1e6 ** (torch.arange(0, 128, 2, device="cuda").double() / 128))
        self.cosine, self.sine = angle.cos().float(), angle.sin().float()
        self.make_cache()
        rows = 128
        self.rows = torch.full((rows,), -1, device="cuda", dtype=torch.int32)
        self.x = torch.full((rows, hidden), float("nan"), device="cuda")
        self.logits = torch.full((rows, vocab), float("nan"), device="cuda")
        self.ring = 64
        self.out = torch.zeros(slots, self.ring, 16, device="cuda",
                               dtype=torch.uint8)
        self.seen = torch.zeros(slots, (vocab + 31) // 32, device="cuda",
                                dtype=torch.int32)
        self.cancel = torch.zeros(slots, dtype=torch.int32).pin_memory()
        self.slot_bytes = torch.zeros(slots, c.sizeof(o.Slot), device="cuda",
                                      dtype=torch.uint8)
        self.slots_set = [None] * slots
        self.position = [0] * slots
        self.tiles = 1
        self.make_struct()
        for i in range(slots):
            self.set_slot(i)

    def random(self, *shape):
        return torch.randn(*shape, device="cuda", generator=self.generator)

    def gains(self, low, high, n):
        return torch.rand(n, device="cuda", generator=self.generator) \
            * (high - low) + low

    def matrix(self, rows, columns):
        return (self.random(rows, columns) * columns ** -0.5).to(self.half)

    def make_layer(self, i):
        wide = (self.heads + 2 * self.kv_heads) * 128
        w = {"input_norm": self.gains(0.5, 1.5, self.hidden),
             "post_norm": self.gains(0.5, 1.5, self.hidden),
             "q_norm": self.gains(1, 2.5, 128),
             "k_norm": self.gains(0.5, 2, 128),
             "qkv": self.matrix(wide, self.hidden),
             "o": self.matrix(self.hidden, self.heads * 128),
             "gate_up": self.matrix(2 * self.inner, self.hidden),
             "down": self.matrix(self.hidden, self.inner)}
        for name, value in w.items():
            setattr(self.layers[i], name, value.data_ptr())
        return w

    def make_cache(self):
        self.blocks = self.slots * self.slot_blocks
        self.kv = Cache()
        self.kv.data = torch.full(
            (self.count_layers, self.blocks, self.kv_heads, 2, 16, 128),
            float("nan"), device="cuda", dtype=self.half)
        self.tables = torch.randperm(
            self.blocks, device="cuda", generator=self.generator).to(
                torch.int32).reshape(self.slots, self.slot_blocks).contiguous()

    def make_struct(self):
        d = self.d = o.Decode()
        d.half = o.HALVES[self.half]
        d.layers, d.hidden, d.heads = self.count_layers, self.hidden, self.heads
        d.inner, d.vocab, d.eps = self.inner, self.vocab, 1e-6
        d.layer = self.layers
        for name in ("norm", "head", "cosine", "sine", "tables", "rows", "seen",
                     "out", "x", "logits"):
            setattr(d, name, getattr(self, name).data_ptr())
        d.embedding = d.head
        d.kv = o.KV(self.kv.data.data_ptr(), self.blocks, self.count_layers,
                    self.kv_heads)
        d.slots, d.slot_blocks = self.slots, self.slot_blocks
        d.slot = self.slot_bytes.data_ptr()
        d.ring, d.hashes = self.ring, 1
        d.cancel = self.cancel.data_ptr()
        size = self.lib.lib.cuda_decode_scratch(c.byref(d), 16)
        self.scratch = torch.zeros(size, device="cuda", dtype=torch.uint8)
        d.scratch = self.scratch.data_ptr()

    def fill(self, slot, tokens):
        """K and V of the tokens 0 .. tokens - 1; the next goes behind."""
        self.position[slot] = tokens
        count = (tokens + 15) // 16
        if not count:
            return
        for layer in range(self.count_layers):
            x = self.random(count, self.kv_heads, 2, 16, 128).to(self.half)
            x[:, :, 0] *= 2
            for i in (0, tokens // 16 - 1, 15):
                if 0 <= i < count:
                    x[i, :, 0, 0] *= 3 # outliers
            if tokens % 16:
                x[-1, :, :, tokens % 16:] = float("nan")
            self.kv.data[layer][self.tables[slot, :count].long()] = x

    def set_slot(self, slot, limit=1000, keep=0, poison_at=0xffffffff,
                 stop_ids=(), forced=None, seed=0, page_hash=0, temperature=0.0,
                 top_p=1.0, penalty=1.0):
        s = o.Slot(status=o.RUNNING, limit=limit, keep=keep,
                   poison_at=poison_at, stop_count=len(stop_ids), seed=seed,
                   page_hash=page_hash, temperature=temperature, top_p=top_p,
                   penalty=penalty)
        s.last = (slot * 7919 + 13) % self.vocab
        for i, v in enumerate(stop_ids):
            s.stop_ids[i] = v
        if forced:
            ids = torch.tensor(forced, device="cuda", dtype=torch.int32)
            self.keep.append(ids)
            s.forced, s.limit = ids.data_ptr(), len(forced)
        self.slots_set[slot] = s

    def reset(self):
        """All slots as set, at their positions."""
        for i, s in enumerate(self.slots_set):
            s.position = self.position[i]
        data = b"".join(bytes(s) for s in self.slots_set)
        self.slot_bytes.copy_(torch.frombuffer(
            bytearray(data), dtype=torch.uint8).reshape(self.slots, -1))
        self.seen.zero_()
        self.out.zero_()

    def read_slots(self):
        data = self.slot_bytes.cpu().numpy().tobytes()
        return [o.Slot.from_buffer_copy(data, i * c.sizeof(o.Slot))
                for i in range(self.slots)]

    def put_rows(self, places):
        """The slot of each row, None for none."""
        self.tiles = max(1, (len(places) + 7) // 8)
        rows = [-1 if p is None else p for p in places]
        rows += [-1] * (128 - len(rows))
        self.rows.copy_(torch.tensor(rows, dtype=torch.int32))

    def results(self):
        """For each slot what was said of it: (id, status, hash)"""
        out = self.out.cpu().numpy().tobytes()
        results = []
        for i in range(self.slots):
            said = []
            for j in range(self.ring):
                e = o.Out.from_buffer_copy(out, (i * self.ring + j) * 16)
                if not e.status:
                    break
                said.append((e.id, e.status, e.hash))
            results.append(said)
        return results

    def begin(self):
        self.lib.decode_begin(c.byref(self.d), self.tiles)

    def layer(self, i):
        self.lib.decode_layer(c.byref(self.d), self.tiles, i)

    def end(self):
        self.lib.decode_end(c.byref(self.d), self.tiles)

    def step(self):
        self.lib.decode_step(c.byref(self.d), self.tiles)

    def cached(self, cache, slot):
        n = self.position[slot]
        table = self.tables[slot, :(n + 15) // 16].long()
        rows = unswizzle(cache[0][table]).permute(2, 0, 3, 1, 4).reshape(
            2, -1, self.kv_heads, 128)
        return rows[0, :n], rows[1, :n]

    def reference(self, slots, x, cache, dtype):
        """Layer 0 for one token of each slot. float64: no rounding but that of
        weights and cache; a 16-bit dtype: torch's products and attention in
        it, the rest in float32."""
        exact = dtype == torch.float64
        wide = torch.float64 if exact else torch.float32
        w = {n: v.to(dtype if v.dtype == self.half else wide)
             for n, v in self.weights[0].items()}
        x, out = x.to(wide), []

        def norm(v, g):
            return v * (v.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * g

        def times(v, m):
            return (v.to(dtype) @ m.T).to(wide)
        for i, slot in enumerate(slots):
            n, row = self.position[slot], x[i]
            qkv = times(norm(row, w["input_norm"]), w["qkv"]).view(-1, 128)
            cs, sn = self.cosine[n].to(wide), self.sine[n].to(wide)

            def rotate(v):
                low, high = v.chunk(2, -1)
                return torch.cat([low * cs - high * sn, high * cs + low * sn],
                                 -1)
            q = rotate(norm(qkv[:self.heads], w["q_norm"]))
            k = rotate(norm(qkv[self.heads:self.heads + self.kv_heads],
                            w["k_norm"]))
            v = qkv[self.heads + self.kv_heads:]
            old_k, old_v = self.cached(cache, slot)
            keys = torch.cat([old_k.to(dtype), k[None].to(dtype)])
            values = torch.cat([old_v.to(dtype), v[None].to(dtype)])
            attended = F.scaled_dot_product_attention(
                q[None, :, None].to(dtype), keys.transpose(0, 1)[None],
                values.transpose(0, 1)[None], enable_gqa=True)
            row = row + times(attended.reshape(-1).to(wide), w["o"])
            inner = times(norm(row, w["post_norm"]), w["gate_up"])
            inner = inner.view(-1, 2, 8)
            inner = (F.silu(inner[:, 0]) * inner[:, 1]).reshape(-1)
            out.append(row + times(inner, w["down"]))
        return torch.stack(out)
