#!/usr/bin/env python3
"""Draws the two pages of tests/data/golden whose sides are no multiples of 28,
with the font that Pillow carries. The pictures are committed: run this only to
change them."""
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

GOLDEN = Path(__file__).resolve().parents[2] / "tests/data/golden"

LETTER = """Harbour Office, Quay 7

Dear Mr Lindqvist,

thank you for your letter of 14 March. The crane
on the north quay was repaired last week, and the
barges can be unloaded there again from Monday.

Please send us the list of your goods by Friday
noon, so that we can keep the two sheds free for
you. The price stays at 38.50 a ton.

With kind regards
Ada Morgan"""

NOTE = """Reading room

The library is open from nine in
the morning until six in the
evening, on Saturdays until one.

Books are lent for four weeks.
Please ask at the desk."""


def draw(name, width, height, text, size, left, top, leading):
    page = Image.new("L", (width, height), 250)
    pen = ImageDraw.Draw(page)
    font = ImageFont.load_default(size)
    for i, line in enumerate(text.split("\n")):
        pen.text((left, top + i * leading), line, 25, font)
    page.save(GOLDEN / name, optimize=True)


draw("letter-850x1100.png", 850, 1100, LETTER, 27, 90, 120, 52)
draw("note-600x800.png", 600, 800, NOTE, 28, 60, 90, 58)
