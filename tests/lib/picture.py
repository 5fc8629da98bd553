"""Pictures without an image library.

picture(seed) is a small gray PNG with bars like lines of text: not blank, and
different for every seed.
"""
import random
import struct
import zlib


def _chunk(kind, data):
    return (struct.pack(">I", len(data)) + kind + data +
            struct.pack(">I", zlib.crc32(kind + data)))


def png(width, height, rows, level=6):
    """An 8 bit gray PNG of `rows`, each `width` bytes."""
    raw = b"".join(b"\0" + row for row in rows)
    return (b"\x89PNG\r\n\x1a\n" +
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)) +
            _chunk(b"IDAT", zlib.compress(raw, level)) + _chunk(b"IEND", b""))


def picture(seed, width=320, height=96):
    """A PNG with words drawn as bars: the same bytes for the same seed."""
    rand = random.Random(seed)
    blank = b"\xff" * width
    rows = [blank] * height
    for top in range(8, height - 12, 16):
        line = bytearray(blank)
        x = 8
        while x < width - 24:
            word = rand.randint(2, 9)
            for _ in range(word):
                stroke = rand.randint(1, 3)
                line[x:x + stroke] = bytes(stroke)
                x += stroke + rand.randint(2, 4)
                if x >= width - 12:
                    break
            x += 8
        rows[top:top + 9] = [bytes(line)] * 9
    return png(width, height, rows)


def blank(width=320, height=96):
    """White paper: a valid picture without text."""
    return png(width, height, [b"\xff" * width] * height)
