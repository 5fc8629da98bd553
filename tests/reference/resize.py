#!/usr/bin/env python3
"""Makes tests/data/resize.json: what Pillow makes of generated pictures.

Pictures are made of a counter, here and in tests/unit/test_resize.c alike, so that only sizes and checksums are stored.
Run it from the root of the repository; it needs numpy and Pillow 12.0 or older. Later ones resize some pages along their
columns first (12.3: those over a hundred times as high as wide; 13: all that get much shorter), which rounds otherwise.
Models were trained, and are run elsewhere, with rows first.
"""
import json
import math
import random
import zlib

import numpy as np
import PIL
from PIL import Image

OUT = "tests/data/resize.json"
LONGEST = 1540


def picture(width, height, channels, seed):
    """Bytes of splitmix64; a third of the seeds make black and white, a third long runs of it."""
    count = width * height * channels
    with np.errstate(over="ignore"):
        state = np.arange(1, count // 8 + 2, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    noise = state.astype("<u8").view(np.uint8)[:count]
    if seed % 3 == 1:
        noise = np.where(noise < 128, 0, 255).astype(np.uint8)
    if seed % 3 == 2:
        noise = np.where(noise[np.arange(count) // 32] < 128, 0, 255).astype(np.uint8)
    shape = (height, width) if channels == 1 else (height, width, channels)
    return noise.reshape(shape)


def target(width, height, multiple):
    ratio = max(height / LONGEST, width / LONGEST)
    if ratio > 1:
        height, width = max(1, math.floor(height / ratio)), max(1, math.floor(width / ratio))
    return ((width - 1) // multiple + 1) * multiple, ((height - 1) // multiple + 1) * multiple


def cases():
    rng = random.Random(1)
    side = lambda: max(1, round(math.exp(rng.uniform(math.log(8), math.log(4000)))))
    sizes = [(side(), side()) for _ in range(296)] + [(4000, 4000), (4000, 1), (1, 4000), (3999, 3997)]
    for seed, (width, height) in enumerate(sizes):
        yield width, height, *target(width, height, 14 if seed % 10 == 9 else 28), 3 if seed % 2 else 1, seed
    for seed in range(300, 400):  # sizes that the rule never asks for
        yield *(rng.randint(1, 90) for _ in range(4)), 3 if seed % 2 else 1, seed


def main():
    assert tuple(map(int, PIL.__version__.split(".")[:2])) <= (12, 0), "Pillow up to 12.0 is needed: " + PIL.__version__
    rows = []
    for width, height, out_width, out_height, channels, seed in cases():
        image = Image.fromarray(picture(width, height, channels, seed))
        out = image.resize((out_width, out_height), Image.Resampling.BICUBIC)
        rows.append([width, height, out_width, out_height, channels, seed, zlib.crc32(out.tobytes())])
    with open(OUT, "w", encoding="ascii") as f:
        f.write('{"made_by": "tests/reference/resize.py", "pillow": "%s",\n' % PIL.__version__)
        f.write('"columns": "width, height, to width, to height, channels, seed, CRC-32 of the pixels",\n"cases": [\n')
        f.write(",\n".join(json.dumps(row) for row in rows) + "]}\n")


if __name__ == "__main__":
    main()
