"""TIFF and PDF files of many pages, made of the gray pictures of picture.py."""
import struct
import zlib


def gray(data):
    """(width, height, rows in one) of an 8 bit gray PNG without filters."""
    at, packed = 8, b""
    while at < len(data):
        length, = struct.unpack(">I", data[at:at + 4])
        if data[at + 4:at + 8] == b"IDAT":
            packed += data[at + 8:at + 8 + length]
        at += length + 12
    width, height = struct.unpack(">II", data[16:24])
    raw = zlib.decompress(packed)
    return width, height, b"".join(raw[y * (width + 1) + 1:(y + 1) * (width + 1)]
                                   for y in range(height))


def tiff(pictures):
    """Deflated, one strip a page; directories behind the pixels."""
    out = bytearray(b"II*\0\0\0\0\0")
    link = 4  # where the offset of the next directory goes
    for picture in pictures:
        width, height, pixels = gray(picture)
        strip, at = zlib.compress(pixels), len(out)
        out += strip + b"\0" * (len(strip) % 2)
        out[link:link + 4] = struct.pack("<I", len(out))
        entries = [(256, 4, width), (257, 4, height), (258, 3, 8), (259, 3, 8), (262, 3, 1),
                   (273, 4, at), (277, 3, 1), (278, 4, height), (279, 4, len(strip))]
        out += struct.pack("<H", len(entries))
        for tag, kind, value in entries:
            out += struct.pack("<HHII", tag, kind, 1, value)
        link = len(out)
        out += b"\0\0\0\0"
    return bytes(out)


def pdf_file(objects, extra=b""):
    """The objects numbered from 1, of which the first is the catalog, with a table of
    where they are; extra: more words of the trailer."""
    out, places = bytearray(b"%PDF-1.4\n"), []
    for i, one in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (i, one)
    start = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % place for place in places)
    out += b"trailer\n<< /Size %d /Root 1 0 R %s >>\nstartxref\n%d\n%%%%EOF\n" % (
        len(objects) + 1, extra, start)
    return bytes(out)


def pdf(pictures, dpi=300, rotate=0, extra=b""):
    """One picture a page, which it covers."""
    pages = [gray(p) for p in pictures]
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>",
               b"<< /Type /Pages /Count %d /Kids [%s] >>" %
               (len(pages), b" ".join(b"%d 0 R" % (3 + 3 * i) for i in range(len(pages))))]
    for i, (width, height, pixels) in enumerate(pages):
        w, h = width * 72 / dpi, height * 72 / dpi
        draw = b"q %f 0 0 %f 0 0 cm /I Do Q" % (w, h)
        packed = zlib.compress(pixels)
        objects += [
            b"<< /Type /Page /Parent 2 0 R /Rotate %d /MediaBox [0 0 %f %f] /Contents %d 0 R "
            b"/Resources << /XObject << /I %d 0 R >> >> >>" % (rotate, w, h, 4 + 3 * i, 5 + 3 * i),
            b"<< /Length %d >>\nstream\n%s\nendstream" % (len(draw), draw),
            b"<< /Type /XObject /Subtype /Image /Width %d /Height %d /BitsPerComponent 8 "
            b"/ColorSpace /DeviceGray /Filter /FlateDecode /Length %d >>\nstream\n%s\nendstream"
            % (width, height, len(packed), packed)]
    return pdf_file(objects, extra)


def pages_of(text):
    """What stands behind each marker, checked to count from 1."""
    parts = text.split(b"<!-- page ")
    assert parts[0] == b"", "something before the first page"
    pages = []
    for number, part in enumerate(parts[1:], 1):
        mark, _, page = part.partition(b" -->\n")
        assert mark == b"%d" % number, "page %r, not %d" % (mark, number)
        pages.append(page[:-1] if number < len(parts) - 1 else page)
    return pages
