#!/usr/bin/env python3
"""Renders 25 pages with known text, in other fonts and layouts than the
documents of tests/data/corpus, so that reading is not tuned to those.

  render_pages.py DIR

Writes DIR/NAME.png or .jpg, NAME.txt (the text in reading order) and
NAME.gt.md (headings, lists, tables). Fixed seeds: the same pages every time.
Needs weasyprint, pdftoppm (poppler-utils), Pillow, numpy, and the fonts of
the Debian packages fonts-crosextra-caladea, -carlito, fonts-ebgaramond,
-lato, -linuxlibertine, -open-sans, -quattrocento, -texgyre, -hack-ttf,
-inconsolata, -cantarell, -roboto-unhinted, -dejavu-core.
"""
import html
import io
import random
import subprocess
import sys
from pathlib import Path

import numpy
from PIL import Image, ImageFilter
from weasyprint import HTML

from sentences import CITIES, NAMES, SENTENCES, STREETS, WORDS

# ---- blocks: each knows its HTML, its text and its Markdown ----


class Block:
    """HTML to render, lines of text to expect, Markdown to compare with."""

    def __init__(self, source, text, markdown=None):
        self.html, self.text = source, text
        self.md = markdown if markdown is not None else text


def esc(text):
    return html.escape(text, quote=False)


def heading(text, level=1, css=""):
    return Block('<h%d style="%s">%s</h%d>' % (level, css, esc(text), level),
                 text, "#" * level + " " + text)


def para(text, css=""):
    return Block('<p style="%s">%s</p>' % (css, esc(text)), text)


def lines(rows, css=""):
    return Block('<p style="%s">%s</p>' % (css, "<br>".join(map(esc, rows))),
                 "\n".join(rows))


def items(rows, numbered=False, css=""):
    tag = "ol" if numbered else "ul"
    numbers = ["%d. " % (i + 1) if numbered else "" for i in range(len(rows))]
    return Block("<%s style='%s'>%s</%s>" % (tag, css, "".join(
        "<li>%s</li>" % esc(r) for r in rows), tag),
        "\n".join(n + r for n, r in zip(numbers, rows)),
        "\n".join((n or "- ") + r for n, r in zip(numbers, rows)))


def table(head, rows, css="", align=""):
    def row(cells, tag):
        return "<tr>%s</tr>" % "".join(
            '<%s class="%s">%s</%s>' % (
                tag, "r" if i < len(align) and align[i] == "r" else "l",
                esc(c), tag) for i, c in enumerate(cells))
    every = ([head] if head else []) + rows
    text = "\n".join(" ".join(c for c in r if c) for r in every)
    top = head or [""] * len(rows[0])
    markdown = "\n".join("| %s |" % " | ".join(r) for r in
                         [top, ["---"] * len(top)] + rows)
    return Block('<table style="%s">%s%s</table>' % (
        css, row(head, "th") if head else "",
        "".join(row(r, "td") for r in rows)), text, markdown)


def columns(count, blocks, css="column-gap: 8mm"):
    return Block('<div style="columns: %d; %s">%s</div>' % (
        count, css, "".join(b.html for b in blocks)),
        "\n".join(b.text for b in blocks),
        "\n\n".join(b.md for b in blocks))


def beside(left, right, widths=(50, 50), css="", across=False):
    """Two groups of blocks side by side, read one after the other."""
    cells = "".join('<td style="width:%d%%; vertical-align: top; padding: 0; '
                    'border: none">%s</td>' % (w, "".join(b.html for b in g))
                    for w, g in zip(widths, (left, right)))
    both = left + right
    return Block('<table class="plain" style="width:100%%; %s"><tr>%s</tr>'
                 "</table>" % (css, cells),
                 (" " if across else "\n").join(b.text for b in both),
                 "\n\n".join(b.md for b in both))


# ---- words ----


class Writer:
    """Sentences, names and amounts of one language, from one seed."""

    def __init__(self, lang, seed):
        self.lang, self.rng = lang, random.Random(seed)
        self.left = []

    def sentence(self):
        if not self.left:
            self.left = SENTENCES[self.lang][:]
            self.rng.shuffle(self.left)
        text = self.left.pop()
        return text.format(n=self.rng.randint(2, 99),
                           m=self.rng.randint(100, 999),
                           d=self.rng.randint(1, 28),
                           t="%d:%02d" % (self.rng.randint(7, 21),
                                          self.rng.randint(0, 59)))

    def text(self, n):
        return " ".join(self.sentence() for _ in range(n))

    def word(self):
        return self.rng.choice(WORDS[self.lang])

    def title(self, n=2):
        first = self.word()
        rest = [self.word() for _ in range(n - 1)]
        return " ".join([first[0].upper() + first[1:]] + rest)

    def name(self):
        return self.rng.choice(NAMES[self.lang])

    def address(self):
        return ["%s %d" % (self.rng.choice(STREETS[self.lang]),
                           self.rng.randint(1, 180)),
                "%05d %s" % (self.rng.randint(10000, 99999),
                             self.rng.choice(CITIES[self.lang]))]

    def amount(self, low=1, high=5000):
        value = "%.2f" % self.rng.uniform(low, high)
        whole, cents = value.split(".")
        mark = "," if self.lang == "en" else "."
        if len(whole) > 3:
            whole = whole[:-3] + mark + whole[-3:]
        return whole + ("." if self.lang == "en" else ",") + cents

    def code(self):
        return "%s-%d" % ("".join(self.rng.choice("ABCDEFHKLMNPRTX")
                                  for _ in range(2)),
                          self.rng.randint(100, 99999))

    def date(self):
        return "%02d.%02d.%d" % (self.rng.randint(1, 28),
                                 self.rng.randint(1, 12),
                                 self.rng.randint(2019, 2027))

    def time(self):
        return "%02d:%02d" % (self.rng.randint(5, 22), self.rng.randint(0, 59))


# ---- kinds of pages ----


def letter(w, right=False):
    sender = [w.name()] + w.address()
    css = "text-align: right" if right else ""
    return [lines(sender, css), lines([w.name()] + w.address(),
                                      "margin-top: 6mm"),
            para(w.date(), "text-align: right"), heading(w.title(4), 2),
            *[para(w.text(w.rng.randint(2, 4))) for _ in range(4)],
            items([w.sentence() for _ in range(3)]),
            para(w.text(2)), lines([w.name(), w.title(1)])]


def invoice(w, head="background:#eee", boxed=False):
    rows = [[w.code(), w.title(2), str(w.rng.randint(1, 40)), w.amount(),
             w.amount(1000, 9000)] for _ in range(w.rng.randint(6, 11))]
    css = "width:100%;" + ("--b:1px solid #333" if boxed else "")
    return [beside([heading(w.name(), 1), lines(w.address())],
                   [lines([w.code(), w.date(), w.amount()],
                          "text-align:right")]),
            lines([w.name()] + w.address(), "margin-top: 8mm"),
            para(w.text(1)),
            Block("<style>th {%s}</style>" % head, ""),
            table([w.title(1) for _ in range(5)], rows, css, "llrrr"),
            table(None, [[w.title(2), w.amount()] for _ in range(3)],
                  "margin-left:auto", "lr"),
            heading(w.title(2), 2), para(w.text(3))]


def receipt(w):
    rows = [[w.title(2), w.amount(1, 90)] for _ in range(14)]
    return [heading(w.title(1).upper(), 1, "text-align:center"),
            lines(w.address() + ["Tel 0%d %d" % (w.rng.randint(100, 999),
                                                 w.rng.randint(10000, 99999))],
                  "text-align:center"),
            table(None, rows, "width:100%", "lr"),
            table(None, [[w.title(1).upper(), w.amount(90, 900)],
                         [w.title(1), w.amount(90, 900)]],
                  "width:100%; font-weight:bold", "lr"),
            lines([w.date() + " " + w.time(), w.code()]),
            para(w.sentence(), "text-align:center")]


def article(w, count):
    body = []
    for _ in range(4):
        body += [heading(w.title(2), 2)]
        body += [para(w.text(3), "text-align:justify")
                 for _ in range(2)]
    return [heading(w.title(5), 1, "text-align:center"),
            para(w.name(), "text-align:center"),
            para(w.text(2), "font-style:italic; margin: 0 12mm"),
            columns(count, body)]


def book(w):
    body = "text-align:justify; text-indent:5mm; margin:0"
    return [para(w.title(3), "text-align:center; font-size:80%"),
            heading(w.title(2), 2, "text-align:center"),
            *[para(w.text(w.rng.randint(3, 5)), body) for _ in range(4)],
            para(str(w.rng.randint(3, 300)), "text-align:center")]


def form(w):
    rows = [[w.title(2), w.rng.choice([w.name(), w.date(), w.code(),
                                       w.amount()]).upper()]
            for _ in range(9)]
    return [heading(w.title(3), 1), para(w.text(1)), heading(w.title(2), 2),
            table(None, rows, "width:100%; --b:1px solid #555", "ll"),
            heading(w.title(2), 2),
            items([w.sentence() for _ in range(4)], True),
            lines([w.date(), w.name()])]


def figures(w):
    rows = [[w.date(), w.title(3), w.code(), w.amount(), w.amount()]
            for _ in range(22)]
    return [heading(w.title(2), 1), para(w.text(1)),
            table([w.title(1) for _ in range(5)], rows,
                  "width:100%; font-size:85%", "lllrr"), para(w.text(2))]


def times(w):
    head = [w.title(1)] + [str(w.rng.randint(100, 999)) for _ in range(7)]
    rows = [[w.rng.choice(CITIES[w.lang])] + [w.time() for _ in range(7)]
            for _ in range(12)]
    return [heading(w.title(3), 1),
            table(head, rows, "width:100%; --b:1px solid #999", "l"),
            items([w.sentence() for _ in range(3)])]


def screen(w):
    side = [heading(w.title(1), 3)] + [para(w.title(2)) for _ in range(6)]
    main = [heading(w.title(3), 1)] + [para(w.text(2)) for _ in range(3)] + [
        heading(w.title(2), 2), items([w.sentence() for _ in range(3)])]
    bar = para(" ".join(w.title(1) for _ in range(4)),
               "background:#245; color:#fff; padding: 3mm; margin:0")
    return [bar, beside(side, main, (24, 76), "margin-top: 7mm")]


def minutes(w):
    blocks = [heading(w.title(3), 1), para(w.text(2))]
    for i in range(4):
        blocks += [heading("%d. %s" % (i + 1, w.title(3)), 2),
                   para(w.text(3))]
    return blocks + [items([w.sentence() for _ in range(4)], True),
                     lines([w.name(), w.title(1)])]


# ---- what happens to a page before it is a file ----


def skewed(image, rng, degrees):
    return image.rotate(degrees, Image.BICUBIC, expand=False,
                        fillcolor=(255, 255, 255))


def noisy(image, rng, sigma):
    pixels = numpy.asarray(image).astype(float)
    noise = numpy.random.RandomState(rng.randint(0, 99999))
    pixels += noise.normal(0, sigma, pixels.shape[:2])[:, :, None]
    return Image.fromarray(numpy.clip(pixels, 0, 255).astype("uint8"))


def shaded(image, rng, depth):
    width, height = image.size
    x = numpy.linspace(0, 1, width)[None, :]
    y = numpy.linspace(0, 1, height)[:, None]
    light = 1 - depth * (0.7 * x + 0.3 * y * y)
    pixels = numpy.asarray(image).astype(float) * light[:, :, None]
    pixels *= numpy.array([1.0, 0.97, 0.90])
    return Image.fromarray(pixels.astype("uint8"))


def speckled(image, rng, count):
    image = image.convert("L").point(lambda v: 255 if v > 150 else 0)
    for _ in range(count):
        x, y = rng.randint(0, image.width - 4), rng.randint(0,
                                                            image.height - 4)
        size = rng.randint(1, 3)
        image.paste(rng.choice([0, 255, 0]), (x, y, x + size, y + size))
    return image.convert("1")


def dark(image, rng, _):
    pixels = 255 - numpy.asarray(image).astype(float)
    pixels = 28 + pixels * (210 - 28) / 255
    return Image.fromarray(pixels.astype("uint8"))


def blurred(image, rng, radius):
    return image.filter(ImageFilter.GaussianBlur(radius))


def pale(image, rng, level):
    pixels = numpy.asarray(image).astype(float)
    return Image.fromarray((level + pixels * (235 - level) / 255)
                           .astype("uint8"))


# name, kind, font, page CSS, dpi, [(effect, amount)], JPEG quality or 0
A4 = "size: A4; margin: 20mm"
PAGES = [
    ("letter-caladea-en", letter, "Caladea", A4, 150, [], 0),
    ("letter-lato-de", lambda w: letter(w, True), "Lato", A4, 130, [], 0),
    ("letter-termes-fr", letter, "TeX Gyre Termes", A4, 150,
     [(skewed, 0.8), (noisy, 12)], 70),
    ("invoice-carlito-en", invoice, "Carlito", A4, 150, [], 0),
    ("invoice-sans-de", lambda w: invoice(w, "", True), "Open Sans", A4, 150,
     [(speckled, 900)], 0),
    ("invoice-cantarell-nl", lambda w: invoice(
        w, "background:#742; color:#fff"), "Cantarell", A4, 150, [], 80),
    ("receipt-hack-en", receipt, "Hack", "size: 76mm 230mm; margin: 4mm",
     190, [(noisy, 10)], 80),
    ("receipt-inconsolata-es", receipt, "Inconsolata",
     "size: 80mm 230mm; margin: 4mm", 150, [(skewed, -1.2)], 85),
    ("receipt-mono-it", receipt, "DejaVu Sans Mono",
     "size: 80mm 240mm; margin: 4mm", 150, [(pale, 120)], 80),
    ("article-garamond-en", lambda w: article(w, 2), "EB Garamond", A4, 170,
     [], 0),
    ("article-pagella-es", lambda w: article(w, 2), "TeX Gyre Pagella", A4,
     150, [(noisy, 10)], 75),
    ("newsletter-schola-fr", lambda w: article(w, 3), "TeX Gyre Schola",
     "size: A4; margin: 14mm", 170, [(skewed, 0.5)], 80),
    ("book-libertine-en", book, "Linux Libertine O",
     "size: 120mm 190mm; margin: 14mm", 200, [(shaded, 0.35)], 80),
    ("book-quattrocento-de", book, "Quattrocento",
     "size: 120mm 190mm; margin: 14mm", 170, [(skewed, -0.7), (noisy, 8)], 75),
    ("book-bonum-it", book, "TeX Gyre Bonum",
     "size: 130mm 200mm; margin: 14mm", 150, [(blurred, 0.7)], 80),
    ("form-roboto-en", form, "Roboto", A4, 120, [], 0),
    ("form-heros-pt", form, "TeX Gyre Heros", A4, 150, [(noisy, 14)], 70),
    ("table-sans-en", figures, "Open Sans", A4, 140, [], 0),
    ("table-carlito-sv", figures, "Carlito", A4, 150, [(skewed, 0.6)], 80),
    ("timetable-lato-da", times, "Lato", "size: A4 landscape; margin: 18mm",
     120, [], 0),
    ("dark-roboto-en", screen, "Roboto", "size: 330mm 190mm; margin: 0 8mm",
     96, [(dark, 0)], 0),
    ("dark-cantarell-de", minutes, "Cantarell",
     "size: 240mm 190mm; margin: 10mm", 96, [(dark, 0)], 85),
    ("screen-sans-nl", screen, "Open Sans", "size: 330mm 190mm; margin: 0 8mm",
     96, [], 0),
    ("minutes-adventor-pt", minutes, "TeX Gyre Adventor", A4, 150,
     [(speckled, 1400), (skewed, 0.4)], 0),
    ("notice-carlito-sv", minutes, "Carlito", A4, 150,
     [(shaded, 0.5), (noisy, 9), (blurred, 0.6), (skewed, 1.6)], 70),
]

CSS = """
@page { %s }
body { font-family: "%s"; font-size: 11pt; line-height: 1.35; margin: 0 }
h1 { font-size: 150%%; margin: 4mm 0 } h2 { font-size: 120%%; margin: 4mm 0 2mm }
h3 { font-size: 105%%; margin: 3mm 0 1mm } p { margin: 0 0 3mm }
ul, ol { margin: 0 0 3mm; padding-left: 8mm }
table { border-collapse: collapse; margin: 4mm 0 }
td, th { padding: 1.2mm 2mm; border: var(--b, none) }
table:not(.plain) tr { border-bottom: 0.3px solid #999 }
.l { text-align: left } .r { text-align: right }
"""


def render(blocks, font, page, dpi):
    source = "<style>%s</style><body>%s</body>" % (
        CSS % (page, font), "".join(b.html for b in blocks))
    pdf = HTML(string=source).write_pdf()
    png = subprocess.run(["pdftoppm", "-png", "-r", str(dpi), "-f", "1", "-l",
                          "1", "-"], input=pdf, stdout=subprocess.PIPE,
                         check=True).stdout
    more = subprocess.run(["pdfinfo", "-"], input=pdf, stdout=subprocess.PIPE,
                          check=True).stdout.decode()
    if "Pages:           1" not in more:
        raise ValueError("%s: more than one page" % font)
    return Image.open(io.BytesIO(png)).convert("RGB")


def write(folder, seed, name, kind, font, page, dpi, effects, quality):
    rng = random.Random(seed)
    blocks = kind(Writer(name.rsplit("-", 1)[-1], seed))
    image = render(blocks, font, page, dpi)
    for effect, amount in effects:
        if image.mode != "RGB" and effect is not speckled:
            image = image.convert("RGB")
        image = effect(image, rng, amount)
    if quality:
        image.convert("RGB").save(folder / (name + ".jpg"), quality=quality,
                                  dpi=(dpi, dpi))
    else:
        image.save(folder / (name + ".png"), dpi=(dpi, dpi))
    kept = [b for b in blocks if b.text]
    (folder / (name + ".txt")).write_text(
        "\n".join(b.text for b in kept) + "\n", encoding="utf-8")
    (folder / (name + ".gt.md")).write_text(
        "\n\n".join(b.md for b in kept) + "\n", encoding="utf-8")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for seed, page in enumerate(PAGES, 1):
        write(folder, seed, *page)


if __name__ == "__main__":
    main()
