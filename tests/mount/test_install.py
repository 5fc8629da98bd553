#!/usr/bin/env python3
"""What README shows works: `make install`, `make demo`'s session, the table of
options, the commands of the first screen."""
import os
import sys
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from harness import *

README = os.path.join(ROOT, "README.md")


def make(*words):
    need("make")
    return run("make", "-C", ROOT, "--no-print-directory", *words,
               "OUT=" + os.path.relpath(BUILD, ROOT), limit=200,
               env={k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS")})


@test(limit=240)
def install_and_run_from_there():
    if not os.access(ROOT, os.W_OK):
        skip("the source folder is read-only")
    base = os.environ["OCRFS_TEST_DIR"]
    make("install", "DESTDIR=" + base + "/root", "PREFIX=/usr")
    installed = run("find", "root", "-type", "f", cwd=base).decode().split()
    plugins = sorted(n for n in os.listdir(BUILD) if n.startswith("ocrfs-") and n.endswith(".so"))
    check("ocrfs-tesseract.so" in plugins, "plugins: %r" % plugins)
    share = ["bash-completion/completions/ocrfs", "fish/vendor_completions.d/ocrfs.fish",
             "man/man1/ocrfs.1", "man/man8/ocrfs-engine.8",
             *("ocrfs/samples/" + n for n in sorted(os.listdir(DATA + "/samples")) if "." in n),
             "zsh/site-functions/_ocrfs"]
    units = ["system/ocrfs-sleep.service", "system/ocrfs@.service", "user/ocrfs@.service"]
    equal(sorted(installed),
          ["root/usr/bin/ocrfs", *("root/usr/lib/ocrfs/" + n for n in plugins),
           *("root/usr/lib/systemd/" + n for n in units),
           "root/usr/libexec/ocrfs/ocrfs-engine", *("root/usr/share/" + n for n in share)],
          "files")
    scan = os.path.join(DATA, "samples/receipt.jpg")
    env = dict(os.environ, PATH=base + "/root/usr/bin:" + os.environ["PATH"])
    out = run("ocrfs", "read", "--engine", "tesseract", "--cache", "memory", "--runtime",
              base, scan, env=env)
    check(b"TOTAL" in out.upper(), "the text: %r" % out[:300])
    make("uninstall", "DESTDIR=" + base + "/root", "PREFIX=/usr")
    equal(run("find", "root", "-type", "f", cwd=base), b"", "files left")


@test(limit=240)
def the_demo_mounts_reads_searches_unmounts():
    out = run(os.path.join(ROOT, "tests/demo.sh"), limit=200,
              env=dict(os.environ, BUILD=BUILD)).decode()
    commands = [l[2:].split()[0] for l in out.splitlines() if l.startswith("$ ")]
    equal(commands, ["mkdir", "ocrfs", "ls", "cat", "grep", "fusermount3"], "commands")
    cat, grep = out.split("$ cat")[1].split("$ grep")
    check("TOTAL" in cat.upper(), "the receipt: " + cat)
    for name in ("invoice.png.md", "letters/mahnung.png.md", "receipt.jpg.md"):
        check(name in grep, "%s is not among the hits: %s" % (name, grep))
    equal([x for x in mounts() if b"ocrfs-demo" in x[0]], [], "mounts left")


@test(limit=240)
def the_first_screen_of_readme_runs():
    text = read_file(README).decode()
    session = re.search(r"```console\n(.*?)```", text, re.S)[1]
    commands = re.findall(r"^\$ (.*)$", session, re.M)
    check(3 <= len(commands) <= 6, "commands: %r" % commands)
    base = os.environ["OCRFS_TEST_DIR"]
    os.mkdir(base + "/scans")
    for name in ("receipt.jpg", "slide.png"):
        shutil.copy(os.path.join(DATA, "samples", name), base + "/scans")
    shell = "set -e\ncd '%s'\n%s\n" % (base, "\n".join(commands))
    out = run("sh", "-c", shell, limit=200,
              env=dict(os.environ, PATH=BUILD + ":" + os.environ["PATH"]))
    check(b"TOTAL" in out.upper(), "output: %r" % out[-500:])
    check(not is_mounted(base + "/texts"), "still mounted")


@test(mounts_something=False)
def the_options_of_readme_are_those_of_help():
    text = read_file(README).decode()
    table = text.split("## Options")[1].split("\n## ")[0]
    documented = set(re.findall(r"^\| `([a-z_]+)", table, re.M))
    shown = run(OCRFS, "help", "mount").decode()
    shown += run(OCRFS, "read", "--help").decode()
    known = set(re.findall(r"^  ([a-z_]+)(?:=\S+)?(?:  |$)", shown, re.M))
    equal(sorted(documented ^ known), [], "options in only one of README and ocrfs help")


@test(mounts_something=False)
def doctor_finds_what_is_installed():
    status, out, err = run(OCRFS, "doctor", status=None, stderr=True)
    text = (out + err).decode()
    for word in ("fuse", "tesseract", "eng"):
        check(word in text.lower(), "%s is not in the report: %s" % (word, text))
    check(status in (0, 1), "exit status %d" % status)


main()
