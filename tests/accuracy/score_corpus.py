#!/usr/bin/env python3
"""Prints, document by document, how well scans are read.

  score_corpus.py [--folder DIR] [--cache DIR] [--read COMMAND] [NAME...]

For every DIR/NAME.png or .jpg with its truth NAME.txt (and NAME.gt.md for the
structure): the character error rate of ours and of plain `tesseract FILE -`,
headings and list items against the truth (F1), tokens with digits that came
out unbroken, and processor seconds. COMMAND is run as `COMMAND -l LANG FILE` and prints
Markdown. Ends with 1 if the means miss what README promises.
"""
import argparse
import os
import resource
import subprocess
import sys
from pathlib import Path

import cer

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LANGUAGES = dict(en="eng", de="deu", fr="fra", es="spa", it="ita", nl="nld",
                 pt="por", sv="swe", da="dan")
# Without a Latin script, or without one right answer.
APART = {"math-page-en", "tongzhi-zh", "oshirase-ja"}
CLEAN = ("invoice", "contract", "bank-statement", "timetable",
         "energierekening", "lettre-assurance", "screenshot", "slide",
         "article", "kallelse", "form-filled")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    build = ROOT / "build" / "opt"
    parser.add_argument("--folder", type=Path,
                        default=ROOT / "tests" / "data" / "corpus")
    parser.add_argument("--cache", type=Path,
                        default=Path("/tmp/ocrfs-plain-tesseract"))
    parser.add_argument("--out", type=Path, help="keep our texts here")
    parser.add_argument("--read", default="%s %%s %s" % (
        build / "tests/tools/ocr-cat", build / "ocrfs-tesseract.so"))
    parser.add_argument("--worse", type=float, default=0.02,
                        help="a document may be worse than plain by this")
    parser.add_argument("--mean", type=float, default=0.050)
    parser.add_argument("--ratio", type=float, default=1.0)
    parser.add_argument("names", nargs="*")
    return parser.parse_args()


def documents(folder, names):
    for path in sorted(folder.iterdir()):
        lang = LANGUAGES.get(path.stem.rsplit("-", 1)[-1])
        if path.suffix not in (".png", ".jpg") or not lang:
            continue
        if path.stem in APART or not path.with_suffix(".txt").exists():
            continue
        if not names or path.stem in names:
            yield path, lang


def run(command):
    """What a command prints, and the processor seconds it took."""
    env = dict(os.environ, OMP_THREAD_LIMIT="1")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (done.stdout.decode("utf-8", "replace"),
            after.ru_utime + after.ru_stime - before.ru_utime
            - before.ru_stime)


def read_plain(path, lang, cache):
    """What tesseract alone makes of it; kept, since it never changes."""
    cache.mkdir(parents=True, exist_ok=True)
    kept = cache / ("%s-%d.txt" % (path.stem, path.stat().st_size))
    if not kept.exists():
        text, seconds = run(["tesseract", str(path), "-", "-l", lang])
        kept.write_text("%.3f\n%s" % (seconds, text), encoding="utf-8")
    seconds, text = kept.read_text(encoding="utf-8").split("\n", 1)
    return text, float(seconds)


def read_ours(path, lang, command):
    return run((command % ("-l " + lang)).split() + [str(path)])


def score(path, lang, args):
    truth = path.with_suffix(".txt").read_text(encoding="utf-8")
    markdown, seconds = read_ours(path, lang, args.read)
    plain, plain_seconds = read_plain(path, lang, args.cache)
    ours = cer.plain(markdown)
    row = dict(name=path.stem, cer=cer.cer(truth, ours),
               plain=cer.cer(truth, plain), seconds=seconds,
               plain_seconds=plain_seconds)
    row["digits"] = cer.digits_kept(truth, ours)
    structure = path.with_suffix("").with_suffix(".gt.md")
    wanted = (structure.read_text(encoding="utf-8")
              if structure.exists() else "")
    for what, find in (("headings", cer.headings), ("items", cer.items)):
        a, b = find(wanted), find(markdown)
        row[what] = (cer.matches(a, b), sum(a.values()), sum(b.values()))
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / (path.stem + ".md")).write_text(markdown, encoding="utf-8")
    return row


def show(row):
    ratio = row["cer"] / row["plain"] if row["plain"] else float("nan")
    print("%-26s %7.4f %7.4f %6.2f  %8s %8s %9s %6.2f %6.2f" % (
        row["name"], row["cer"], row["plain"], ratio,
        "%d/%d/%d" % row["headings"], "%d/%d/%d" % row["items"],
        "%d/%d" % row["digits"], row["seconds"], row["plain_seconds"]),
        flush=True)


def total(rows, what):
    return [sum(column) for column in zip(*(row[what] for row in rows))]


def summary(rows, args):
    n = len(rows)
    ours = sum(r["cer"] for r in rows) / n
    plain = sum(r["plain"] for r in rows) / n
    clean = [r for r in rows if r["name"].startswith(CLEAN)] or rows
    found, wanted = total(clean, "digits")
    print("mean character error  ours %.4f, plain %.4f, ratio %.2f" % (
        ours, plain, ours / plain if plain else 0))
    print("headings F1 %.2f, list items F1 %.2f (hits/wanted/given above)" % (
        cer.f1(*total(rows, "headings")), cer.f1(*total(rows, "items"))))
    print("tokens with digits, clean pages: %d of %d, %.1f %%" % (
        found, wanted, 100 * found / max(wanted, 1)))
    print("processor seconds a page  ours %.2f, plain %.2f" % (
        sum(r["seconds"] for r in rows) / n,
        sum(r["plain_seconds"] for r in rows) / n))
    worse = [r["name"] for r in rows if r["cer"] > r["plain"] + args.worse]
    if worse:
        print("worse than plain: " + ", ".join(worse))
    return (ours <= args.mean and ours <= args.ratio * plain and not worse
            and cer.f1(*total(rows, "headings")) >= 0.5
            and cer.f1(*total(rows, "items")) >= 0.8
            and found >= 0.95 * wanted)


def main():
    args = arguments()
    print("%-26s %7s %7s %6s  %8s %8s %9s %6s %6s" % (
        "document", "ours", "plain", "ratio", "heads", "items", "digits",
        "s", "plain"))
    rows = []
    for path, lang in documents(args.folder, args.names):
        rows.append(score(path, lang, args))
        show(rows[-1])
    if not rows:
        sys.exit("no documents in %s" % args.folder)
    sys.exit(0 if summary(rows, args) else 1)


if __name__ == "__main__":
    main()
