"""How ids are chosen, as kernels/backend.h says it, written anew."""
import math

import numpy as np

M64 = (1 << 64) - 1
M32 = (1 << 32) - 1


def hash_of(logits):
    x = np.arange(len(logits), dtype=np.uint64) << np.uint64(32)
    x |= logits.view(np.uint32).astype(np.uint64)
    with np.errstate(over="ignore"):
        for shift, factor in ((30, 0xbf58476d1ce4e5b9),
                              (27, 0x94d049bb133111eb)):
            x = (x ^ x >> np.uint64(shift)) * np.uint64(factor)
        x ^= x >> np.uint64(31)
        return int(x.sum(dtype=np.uint64))


def philox(seed, page_hash, position):
    counter = [position, 0, page_hash & M32, page_hash >> 32]
    key = [seed & M32, seed >> 32]
    for _ in range(10):
        a, b = 0xd2511f53 * counter[0], 0xcd9e8d57 * counter[2]
        counter = [b >> 32 ^ counter[1] ^ key[0], b & M32,
                   a >> 32 ^ counter[3] ^ key[1], a & M32]
        key = [key[0] + 0x9e3779b9 & M32, key[1] + 0xbb67ae85 & M32]
    return counter[0]


def choose(logits, seen, slot, position):
    """Ids that follow the rule: one, or two where the number drawn is nearer
    to a border than rounding."""
    x = logits.astype(np.float64)
    if slot.penalty != 1:
        for i in seen:
            p = np.float32(slot.penalty)
            x[i] = logits[i] / p if logits[i] > 0 else logits[i] * p
    if slot.temperature == 0:
        return {int(np.argmax(x))}
    order = sorted(np.flatnonzero(x >= x.max() - 22.18 * slot.temperature),
                   key=lambda i: (-x[i], i))
    p = np.exp((x[order] - x.max()) / slot.temperature)
    sums = np.cumsum(p)
    last = int(np.searchsorted(sums, min(slot.top_p, 1) * sums[-1] * (1 - 1e-9)))
    number = (philox(slot.seed, slot.page_hash, position) >> 8) * 2.0 ** -24
    ids = set()
    for end in {last, min(last + 1, len(sums) - 1) if math.isclose(
            sums[last], slot.top_p * sums[-1], rel_tol=1e-6) else last}:
        for slack in (-1e-5, 0, 1e-5):
            at = np.searchsorted(sums, number * sums[end] * (1 + slack),
                                 side="right")
            ids.add(int(order[min(int(at), end)]))
    return ids
