"""Character error rate and structure of a Markdown text against the truth.

The rate is the Levenshtein distance over characters (NFC), white space
collapsed, divided by the length of the truth. Markdown marks of the output
are taken off first.
"""
import html
import re
import unicodedata
from collections import Counter

try:
    from Levenshtein import distance
except ImportError:  # python3-levenshtein is only faster

    def distance(a, b):
        row = list(range(len(b) + 1))
        for i, ca in enumerate(a, 1):
            last, row[0] = row[0], i
            for j, cb in enumerate(b, 1):
                best = min(row[j] + 1, row[j - 1] + 1, last + (ca != cb))
                last, row[j] = row[j], best
        return row[-1]


RULER = re.compile(r"^\s*\|?\s*:?-{2,}:?\s*(\|\s*:?-{2,}:?\s*)*\|?\s*$")
ESCAPED = re.compile(r"\\([\\`*_{}\[\]()#+\-.!|$>~])")


def plain(text):
    """The text a reader of the rendered Markdown sees."""
    text = re.sub(r"<br\s*/?>", "\n", text, flags=re.I)
    text = re.sub(r"<[a-zA-Z/!][^>]*>", "", text)
    text = html.unescape(text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    lines = []
    for line in text.split("\n"):
        if RULER.match(line) or line.startswith("```"):
            continue
        line = re.sub(r"^\s{0,3}(#{1,6}\s+|>\s?)", "", line)
        if line.lstrip().startswith("|"):
            line = re.sub(r"(?<!\\)\|", " ", line).replace("\\|", "|")
        lines.append(line)
    text = "\n".join(lines)
    text = re.sub(r"\*\*(?=\S)(.+?)(?<=\S)\*\*", r"\1", text)
    text = re.sub(r"(?<!\w)__(?=[^\s_])(.+?)(?<=[^\s_])__(?!\w)", r"\1", text)
    text = re.sub(r"(?<![\w*])\*(?=\S)([^*\n]+?)(?<=\S)\*(?![\w*])", r"\1", text)
    return ESCAPED.sub(r"\1", text)


def normal(text, nospace=False):
    text = unicodedata.normalize("NFC", text.replace("\f", "\n"))
    text = re.sub(r"^[ \t]*[•·*◦‣\-–][ \t]+", "", text, flags=re.M)
    return re.sub(r"\s+", "" if nospace else " ", text).strip()


def cer(truth, output, nospace=False):
    a, b = normal(truth, nospace), normal(output, nospace)
    if not a:
        return float(bool(b))
    return distance(a, b) / len(a)


def key(text):
    """For comparing headings and items: letters and digits only."""
    return "".join(c for c in plain(text).lower() if c.isalnum())


def headings(markdown):
    found = re.findall(r"^ {0,3}#{1,6}\s+(.*?)\s*#*$", markdown, flags=re.M)
    return Counter(key(text) for text in found)


def items(markdown):
    """List items; one that goes on over more lines counts as one."""
    found = []
    for line in markdown.split("\n"):
        match = re.match(r"^ {0,6}([-*+]|\d{1,3}[.)])\s+(.*)$", line)
        if match:
            found.append(match.group(2))
        elif found and line.startswith("  ") and line.strip():
            found[-1] += " " + line.strip()
    return Counter(key(text) for text in found)


def matches(truth, output):
    """How many of two bags go together, letting a tenth be misread."""
    rest, hits = list(output.elements()), 0
    for want in truth.elements():
        near = [o for o in rest
                if distance(want, o) <= max(len(want), len(o)) * 0.1]
        if near:
            rest.remove(near[0])
            hits += 1
    return hits


def digits_kept(truth, output):
    """(found, all) of the tokens of the truth that have a digit."""
    want = Counter(t for t in truth.split() if re.search(r"\d", t))
    have = Counter(output.split())
    return sum((want & have).values()), sum(want.values())


def f1(hits, wanted, given):
    return 2 * hits / (wanted + given) if wanted + given else 1.0
