"""Faults put into the code, one at a time, in a copy of the tree: what
tests/mutants.py and tests/gpu/mutants.py share.

A fault is (name, file, changes, test): each change is a pair (what stands there,
what takes its place), the test a program of tests/unit without its "test_"."""
import contextlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def copy_tree(tree):
    """Tracked and new files; the data by a link. What did not change is left
    alone, so that only what changed is built again."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT,
                            check=True, capture_output=True, text=True).stdout
    for name in listed.split("\n"):
        source, copy = ROOT / name, tree / name
        if not source.is_file() or name.startswith("tests/data/"):
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        if not copy.exists() or copy.read_bytes() != source.read_bytes():
            shutil.copy(source, copy)
    data = tree / "tests/data"
    if not data.exists():
        data.symlink_to(ROOT / "tests/data")


@contextlib.contextmanager
def put_in(tree, fault, file, changes):
    """The file is wrong inside of `with`. Each place stands exactly once."""
    path = tree / file
    right = wrong = path.read_text()
    for old, new in changes:
        if wrong.count(old) != 1:
            sys.exit(f"{fault}: its place stands {wrong.count(old)} times in {file}")
        wrong = wrong.replace(old, new)
    path.write_text(wrong)
    try:
        yield
    finally:
        path.write_text(right)


def failing(command, **how):
    """The first test of the program that fails; None if all pass."""
    try:
        out = subprocess.run(command, capture_output=True, text=True, errors="replace", **how)
    except subprocess.TimeoutExpired:
        return "(hangs)"
    found = re.search(r"^not ok \d+ - (\S+)", out.stdout, re.M)
    if found:
        return found[1]
    return None if out.returncode == 0 else f"(ends with {out.returncode})"


def report(fault, file, test, seen):
    print(f"{fault:46} {file:24} " + (f"test_{test}: {seen}" if seen else "NOTHING"), flush=True)
