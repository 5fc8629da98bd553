#!/usr/bin/env python3
"""Makes tests/data/sampling.json: which ids the rule of struct ocr_sampler (kernels/backend.h) draws.

Written from the rule alone, with exact fractions wherever one decides, and float64 for exp. Logits are made of a counter,
here and in tests/unit/test_sampling.c alike. A draw that ends within four millionths of the border between two ids is refused
(null in the file): there float32 may choose the other one. Run it from the root of the repository; it needs only Python.
"""
import json
import math
import struct
from fractions import Fraction

OUT = "tests/data/sampling.json"
MASK = (1 << 64) - 1
DRAWS = 24
MARGIN = Fraction(1, 250000)


def float32(x):
    return struct.unpack("f", struct.pack("f", x))[0]


def mix(x):
    """The finaliser of splitmix64."""
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def make_logits(kind, count, seed):
    word = [mix(seed << 32 | i) for i in range(count)]
    if kind == "wide":  # multiples of 1/4096 from -8 to 8
        return [(w >> 48) / 4096 - 8 for w in word]
    if kind == "steep":  # four times as far apart: most ids are below 2^-32
        return [(w >> 48) / 1024 - 32 for w in word]
    if kind == "tied":  # eight values
        return [(w >> 61) / 2 - 2 for w in word]
    if kind == "flat":
        return [1.5] * count
    if kind == "peak":
        return [12.0 if i == seed % count else (w >> 48) / 32768 - 2 for i, w in enumerate(word)]
    raise ValueError(kind)


def philox(seed, page_hash, position):
    """The first word of Philox4x32-10, as Salmon et al. (2011) write it: two multiplications a round, each giving a high
    and a low half, and a Weyl sequence for the key."""
    counter = [position, 0, page_hash & 0xFFFFFFFF, page_hash >> 32]
    key = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        high0, low0 = divmod(counter[0] * 0xD2511F53, 1 << 32)
        high1, low1 = divmod(counter[2] * 0xCD9E8D57, 1 << 32)
        counter = [high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0]
        key = [(key[0] + 0x9E3779B9) % (1 << 32), (key[1] + 0xBB67AE85) % (1 << 32)]
    return counter[0]


def penalised(logits, seen, penalty):
    return [x if i not in seen else float32(x / penalty if x > 0 else x * penalty)
            for i, x in enumerate(logits)]


def kept(logits, temperature, top_p):
    """[(id, weight)] of those that may be drawn, in their order, or None if the border is too near."""
    best = max(logits)
    order = sorted((-x, i) for i, x in enumerate(logits)
                   if (best - x) / temperature <= 32 * math.log(2))
    weights = [Fraction(math.exp((-x - best) / temperature)) for x, _ in order]
    every = sum(weights)
    border, so_far = Fraction(top_p) * every, Fraction(0)
    found = []
    exact = len(set(weights)) == 1
    for (_, i), weight in zip(order, weights):
        so_far += weight
        found.append((i, weight))
        near = abs(so_far - border) < MARGIN * every
        if near and 0 < top_p < 1 and not exact:
            return None
        if so_far >= border:
            break
    return found


def draw(found, word):
    """The id that the word chooses, or None if the border is too near."""
    total = sum(weight for _, weight in found)
    point = Fraction(word >> 8, 1 << 24) * total
    so_far = Fraction(0)
    for i, weight in found:
        if so_far and abs(so_far - point) < MARGIN * total:
            return None
        so_far += weight
        if so_far > point:
            return i if so_far - point >= MARGIN * total or i == found[-1][0] else None
    raise AssertionError


def choose(logits, how, position):
    if how["temperature"] == 0:
        return logits.index(max(logits))
    found = kept(logits, float32(how["temperature"]), float32(how["top_p"]))
    return found and draw(found, philox(int(how["seed"], 16), int(how["hash"], 16), position))


def row(kind, count, number, temperature, top_p, penalty=1.0, every=0, seed=0, page_hash=0, first=0):
    """Ids of DRAWS positions. Seen are the ids that `every` divides, 0: none."""
    how = {"kind": kind, "count": count, "logits": number, "temperature": temperature, "top_p": top_p,
           "penalty": penalty, "every": every, "seed": "%x" % seed, "hash": "%x" % page_hash, "first": first}
    logits = make_logits(kind, count, number)
    if every:
        logits = penalised(logits, set(range(0, count, every)), float32(penalty))
    how["ids"] = [choose(logits, how, first + i) for i in range(DRAWS)]
    return how


def rows():
    number = 0
    for kind, count in (("wide", 99), ("wide", 4096), ("steep", 4096), ("tied", 99), ("tied", 1000), ("flat", 4),
                        ("flat", 65), ("peak", 4096), ("wide", 1), ("wide", 64), ("wide", 65)):
        for temperature, top_p in ((0.0, 1.0), (0.2, 1.0), (0.7, 0.9), (1.0, 1.0), (1.0, 0.5), (2.0, 0.95), (1.0, 0.0),
                                   (2.0, 0.01)):
            number += 1
            state = mix(number)
            yield row(kind, count, number, temperature, top_p, seed=state if number % 3 else 0,
                      page_hash=mix(state), first=(0, 2000, (1 << 32) - DRAWS)[number % 3])
    for kind, count in (("wide", 99), ("tied", 200), ("steep", 4096)):
        for temperature in (0.0, 0.7, 1.5):
            for penalty, every in ((1.25, 2), (1.3, 3), (2.0, 1), (1.1, 64)):
                number += 1
                yield row(kind, count, number, temperature, 0.9 if number % 2 else 1.0, penalty, every,
                          seed=number, page_hash=mix(number))


def shares():
    """What each of few ids must get of very many draws."""
    for kind, count, temperature, top_p in (("wide", 12, 1.0, 1.0), ("wide", 12, 4.0, 0.9), ("tied", 9, 0.5, 0.8),
                                            ("flat", 5, 1.0, 1.0), ("flat", 8, 2.0, 0.5)):
        found = kept(make_logits(kind, count, 77), float32(temperature), float32(top_p))
        total = sum(weight for _, weight in found)
        share = [0.0] * count
        for i, weight in found:
            share[i] = float(weight / total)
        yield {"kind": kind, "count": count, "logits": 77, "temperature": temperature, "top_p": top_p, "share": share}


def words():
    keys = [(0, 0), (1, 0), (0, 1), (1 << 32, 0), (0, 1 << 32), (MASK, MASK), (mix(1), mix(2)), (mix(3), mix(4))]
    for seed, page_hash in keys:
        for position in (0, 1, 2, 1000, 16383, (1 << 32) - 1):
            yield ["%x" % seed, "%x" % page_hash, position, philox(seed, page_hash, position)]


def main():
    # Random123's known answers for Philox4x32-10.
    assert philox(0, 0, 0) == 0x6627E8D5
    out = {"words": list(words()), "rows": list(rows()), "shares": list(shares())}
    ids = [i for r in out["rows"] for i in r["ids"]]
    refused = ids.count(None)
    assert refused < len(ids) / 100, refused
    for r in out["rows"]:  # the rule must matter
        if r["kind"] == "wide" and r["count"] > 64 and r["temperature"] >= 1 and r["top_p"] == 1:
            assert len(set(r["ids"])) > DRAWS / 3, r
    with open(OUT, "w", encoding="ascii") as f:
        f.write("{" + ",\n".join(
            '"%s": [\n%s]' % (name, ",\n".join(json.dumps(x, separators=(",", ":")) for x in rows_of))
            for name, rows_of in out.items()) + "}\n")
    print("%s: %d words, %d ids (%d refused), %d shares" % (
        OUT, len(out["words"]), len(ids), refused, len(out["shares"])))


main()
