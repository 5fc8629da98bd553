#!/usr/bin/env python3
"""Pages of a TIFF and of a PDF against the same images as files of their own.

  same_pages.py [--folder DIR] [--engine null] [NAME...]

For each language one TIFF and one PDF are made of the documents of the corpus
(JPEG as it is, PNG without loss) and read with tesseract, or with `null`, whose
text is a sum over the pixels. Prints, document by document, whether the texts are
the same, and the character error rates. Ends with 1 if a page of a TIFF differs, or
the mean of the PDF is worse by more than 0.01.
"""
import argparse
import os
import struct
import subprocess
import sys
import tempfile
import zlib
from collections import defaultdict
from pathlib import Path

import cer
from score_corpus import ROOT, documents

sys.path.append(str(ROOT / "tests" / "lib"))
from documents import pages_of, pdf_file


class Png:
    def __init__(self, data):
        self.palette, packed, self.dpi, at = b"", b"", 150, 8
        while at < len(data):
            length, kind = struct.unpack(">I4s", data[at:at + 8])
            body = data[at + 8:at + 8 + length]
            at += length + 12
            if kind == b"IHDR":
                (self.width, self.height, self.bits, self.colour, _, _,
                 interlaced) = struct.unpack(">IIBBBBB", body)
                assert self.colour in (0, 2, 3) and not interlaced, "an alpha channel"
            elif kind == b"PLTE":
                self.palette = body
            elif kind == b"pHYs" and body[8] == 1:
                self.dpi = round(struct.unpack(">I", body[:4])[0] * 0.0254)
            elif kind == b"IDAT":
                packed += body
        self.packed = packed
        self.samples = 3 if self.colour == 2 else 1

    def rows(self):
        """The samples, without the filters."""
        stride = (self.width * self.bits * self.samples + 7) // 8
        step = max(1, self.bits * self.samples // 8)
        raw, before, out = zlib.decompress(self.packed), bytearray(stride), bytearray()
        for y in range(self.height):
            kind = raw[y * (stride + 1)]
            row = bytearray(raw[y * (stride + 1) + 1:(y + 1) * (stride + 1)])
            if kind == 1:
                for i in range(step, stride):
                    row[i] = row[i] + row[i - step] & 255
            elif kind == 2:
                row = bytearray(a + b & 255 for a, b in zip(row, before))
            elif kind == 3:
                for i in range(stride):
                    row[i] = row[i] + ((row[i - step] if i >= step else 0) + before[i]) // 2 & 255
            elif kind == 4:
                for i in range(stride):
                    a = row[i - step] if i >= step else 0
                    b, c = before[i], before[i - step] if i >= step else 0
                    pa, pb, pc = abs(b - c), abs(a - c), abs(a + b - 2 * c)
                    row[i] = row[i] + (a if pa <= pb and pa <= pc else b if pb <= pc else c) & 255
            out += row
            before = row
        return bytes(out)

    def tiff(self):
        """(tags, strip)"""
        tags = {258: [self.bits] * self.samples, 259: [8],
                262: [{0: 1, 2: 2, 3: 3}[self.colour]], 277: [self.samples]}
        if self.colour == 3:
            colours = [self.palette[i * 3:i * 3 + 3] or b"\0\0\0" for i in range(1 << self.bits)]
            tags[320] = [c[channel] * 257 for channel in range(3) for c in colours]
        return tags, zlib.compress(self.rows())

    def pdf(self):
        """(dictionary, stream)"""
        space = {0: b"/DeviceGray", 2: b"/DeviceRGB"}.get(self.colour)
        if not space:
            space = b"[/Indexed /DeviceRGB %d <%s>]" % (len(self.palette) // 3 - 1,
                                                        self.palette.hex().encode())
        return (b"/BitsPerComponent %d /ColorSpace %s /Filter /FlateDecode /DecodeParms "
                b"<< /Predictor 15 /Colors %d /BitsPerComponent %d /Columns %d >>" %
                (self.bits, space, self.samples, self.bits, self.width), self.packed)


class Jpeg:
    def __init__(self, data):
        self.data, at, self.dpi = data, 2, 150
        while True:
            marker, length = struct.unpack(">HH", data[at:at + 4])
            if marker == 0xffe0 and data[at + 11] == 1:
                self.dpi = struct.unpack(">H", data[at + 12:at + 14])[0]
            if 0xffc0 <= marker <= 0xffc3:
                self.height, self.width, self.samples = struct.unpack(
                    ">HHB", data[at + 5:at + 10])
                self.factors = [data[at + 11] >> 4, data[at + 11] & 15]
                return
            at += 2 + length

    def tiff(self):
        tags = {258: [8] * self.samples, 259: [7], 262: [6 if self.samples == 3 else 1],
                277: [self.samples]}
        if self.samples == 3:
            tags[530] = self.factors
        return tags, self.data

    def pdf(self):
        return (b"/BitsPerComponent 8 /ColorSpace /Device%s /Filter /DCTDecode" %
                (b"RGB" if self.samples == 3 else b"Gray"), self.data)


def load(path):
    data = path.read_bytes()
    return Png(data) if data.startswith(b"\x89PNG") else Jpeg(data)


def tiff(pictures):
    out, link = bytearray(b"II*\0\0\0\0\0"), 4
    for p in pictures:
        tags, strip = p.tiff()
        longs = {256: p.width, 257: p.height, 273: len(out), 278: p.height, 279: len(strip)}
        out += strip + b"\0" * (len(strip) % 2)
        ratios = {}
        for tag in (282, 283):
            ratios[tag] = len(out)
            out += struct.pack("<II", p.dpi, 1)
        arrays = {}
        for tag, values in tags.items():
            if len(values) > 2:
                arrays[tag] = len(out)
                out += struct.pack("<%dH" % len(values), *values)
        entries = [(t, 4, 1, struct.pack("<I", v)) for t, v in longs.items()]
        entries += [(t, 5, 1, struct.pack("<I", v)) for t, v in ratios.items()]
        entries += [(t, 3, len(v), struct.pack("<I", arrays[t]) if t in arrays else
                     struct.pack("<%dH" % len(v), *v).ljust(4, b"\0")) for t, v in tags.items()]
        out[link:link + 4] = struct.pack("<I", len(out))
        out += struct.pack("<H", len(entries))
        for tag, kind, count, value in sorted(entries):
            out += struct.pack("<HHI", tag, kind, count) + value
        link = len(out)
        out += b"\0\0\0\0"
    return bytes(out)


def pdf(pictures):
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>",
               b"<< /Type /Pages /Count %d /Kids [%s] >>" %
               (len(pictures), b" ".join(b"%d 0 R" % (3 + 3 * i) for i in range(len(pictures))))]
    for i, p in enumerate(pictures):
        w, h = p.width * 72 / p.dpi, p.height * 72 / p.dpi
        draw = b"q %f 0 0 %f 0 0 cm /I Do Q" % (w, h)
        words, stream = p.pdf()
        objects += [
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 %f %f] /Contents %d 0 R "
            b"/Resources << /XObject << /I %d 0 R >> >> >>" % (w, h, 4 + 3 * i, 5 + 3 * i),
            b"<< /Length %d >>\nstream\n%s\nendstream" % (len(draw), draw),
            b"<< /Type /XObject /Subtype /Image /Width %d /Height %d %s /Length %d >>\nstream\n"
            b"%s\nendstream" % (p.width, p.height, words, len(stream), stream)]
    return pdf_file(objects)


def read(paths, engine, lang, folder):
    build = os.environ.get("BUILD") or str(ROOT / "build" / "opt")
    texts = []
    for path in paths:
        texts.append(subprocess.run(
            [os.path.join(build, "ocrfs"), "read", "--engine", engine, "--lang", lang,
             "--cache", "memory", "--runtime", folder, str(path)],
            check=True, stdout=subprocess.PIPE).stdout)
    return texts


def same_as_alone(group, engine, lang, folder):
    """[(path, error rates alone, in a TIFF, in a PDF, same in TIFF, same in PDF)]"""
    pictures, made = [load(p) for p in group], {}
    for ending, make in ((".tif", tiff), (".pdf", pdf)):
        # A second copy of the first: one page alone would have no markers.
        made[ending] = Path(folder) / (lang + ending)
        made[ending].write_bytes(make(pictures + pictures[:1]))
    alone = read(group, engine, lang, folder)
    pages = {e: pages_of(text)[:-1] for e, text in zip(made, read(made.values(), engine, lang, folder))}
    rows = []
    for i, path in enumerate(group):
        truth = path.with_suffix(".txt").read_text(encoding="utf-8")
        three = alone[i], pages[".tif"][i], pages[".pdf"][i]
        rates = [cer.cer(truth, text.decode()) if engine == "tesseract" else 0 for text in three]
        rows.append((path, *rates, three[1] == three[0], three[2] == three[0]))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, default=ROOT / "tests" / "data" / "corpus")
    parser.add_argument("--engine", default="tesseract")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    groups, rows = defaultdict(list), []
    for path, lang in documents(args.folder, args.names):
        groups[lang].append(path)
    with tempfile.TemporaryDirectory() as folder:
        for lang, group in sorted(groups.items()):
            for row in same_as_alone(group, args.engine, lang, folder):
                print("%-28s alone %.4f  TIFF %.4f %-5s  PDF %.4f %s" % (
                    row[0].name, row[1], row[2], "same" if row[4] else "OTHER",
                    row[3], "same" if row[5] else "other"), flush=True)
                rows.append(row)
    means = [sum(r[k] for r in rows) / len(rows) for k in (1, 2, 3)]
    print("%d pages; TIFF: %d the same, PDF: %d; mean error alone %.4f, TIFF %.4f, PDF %.4f" % (
        len(rows), sum(r[4] for r in rows), sum(r[5] for r in rows), *means))
    return not all(r[4] for r in rows) or means[2] > means[0] + 0.01


if __name__ == "__main__":
    sys.exit(main())
