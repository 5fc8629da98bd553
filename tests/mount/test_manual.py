#!/usr/bin/env python3
"""The manual pages and what shells complete agree with the program, and the
examples of the manual run."""
import os
import pty
import select
import sys
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from harness import *

PAGE = os.path.join(BUILD, "man", "ocrfs.1")
ENGINE_PAGE = os.path.join(ROOT, "packaging/man/ocrfs-engine.8")
COMPLETIONS = os.path.join(ROOT, "packaging/completions")

PATH = dict(os.environ, PATH=BUILD + ":" + os.environ["PATH"], TERM="dumb")


def page():
    run("make", "-C", ROOT, "-s", "man", "OUT=" + os.path.relpath(BUILD, ROOT), limit=200,
        env={k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS")})
    return PAGE


def as_shown(path):
    """The page as people see it, on one endless line."""
    need("mandoc")
    text = run("mandoc", "-T", "utf8", "-O", "width=990", path).decode()
    return re.sub(r".\x08", "", text)


def listed(*command):
    """The lines of `ocrfs help --list`, split at the tabs."""
    return [l.split("\t") for l in run(OCRFS, "help", "--list", *command).decode().splitlines()]


def commands():
    return [l[0] for l in listed()]


# --- manual -----------------------------------------------------------------

@test(limit=240, mounts_something=False)
def the_manual_pages_are_well_formed():
    need("mandoc")
    for path in (page(), ENGINE_PAGE):
        out = run("mandoc", "-T", "lint", "-W", "warning", path, status=None)
        equal(out, b"", "mandoc -T lint")


@test(limit=240, mounts_something=False)
def man_shows_them_without_a_warning():
    need("man")
    for path in (page(), ENGINE_PAGE):
        out, err = run("man", "--warnings", "-l", path, stderr=True,
                       env=dict(os.environ, MANWIDTH="80"))[1:]
        equal(err, b"", "warnings")
        check(b"SEE ALSO" in out, "the page: %r" % out[:200])


@test(limit=240, mounts_something=False)
def every_command_and_option_is_in_the_manual():
    text = as_shown(page())
    for name, arguments, summary in listed():
        for words in ("ocrfs %s %s" % (name, arguments), summary):
            check(words in text, "%r is not in the manual" % words)
    for command in ["mount", *commands()]:
        for name, value, preset, help_text in listed(command):
            check(help_text in text, "%s of %s: %r is not in the manual" % (
                name, command, help_text))
            head = (name + " " + value if name[0] == "-" else
                    name + "=" + value.replace("|", " | ") if value else name).strip()
            check(re.search(r"^ +%s\s" % re.escape(head), text, re.M),
                  "%r heads no entry of the manual" % head)
            if value and preset and len(preset) < 20:
                check("%s. Default: %s." % (help_text, preset) in re.sub(" +", " ", text),
                      "the default of %s" % name)


@test(mounts_something=False)
def the_engine_s_switches_are_those_of_its_help():
    text = as_shown(ENGINE_PAGE)
    engine = os.path.join(BUILD, "ocrfs-engine")
    known = set(re.findall(r"--[a-z-]+", run(engine, "--help").decode()))
    equal(sorted(known ^ set(re.findall(r"--[a-z-]+", text))), [],
          "switches in only one of manual and help")


@test(limit=240, mounts_something=False)
def every_file_of_the_manual_is_one_of_the_program():
    known = b"".join(read_file(os.path.join(BUILD, p)) for p in ("ocrfs", "ocrfs-engine"))
    text = as_shown(page()).split("\nFILES")[1].split("\nEXIT")[0]
    for path in ("/etc/ocrfs.conf", ".config/ocrfs/config", "/var/cache/ocrfs", "/run/ocrfs",
                 "/usr/share/ocrfs/models", "OCRFS_MODEL"):
        check(path in text or path in as_shown(page()), path + " is not in the manual")
        check(path.encode() in known, path + " is not in the program")


@test(limit=240)
def the_examples_of_the_manual_run():
    text = read_file(page()).decode().split(".Sh EXAMPLES")[1].split("\n.Sh ")[0]
    examples = re.findall(r"\.Bd .*?\n(.*?)\.Ed", text, re.S)
    check(len(examples) >= 3, "examples: %r" % examples)
    base = os.environ["OCRFS_TEST_DIR"]
    os.mkdir(base + "/scans")
    shutil.copy(os.path.join(DATA, "samples/receipt.jpg"), base + "/scans")
    for example in examples:
        script = re.sub(r"\\-", "-", example)
        check("ocrfs " in script, "an example without ocrfs: " + script)
        os.makedirs(base + "/texts", exist_ok=True)
        out = run("sh", "-c", "set -ex\n" + script.replace("mkdir ", "mkdir -p "), cwd=base,
                  limit=200, env=PATH)
        check(out, "no output of: " + script)
        check(not is_mounted(base + "/texts"), "still mounted after: " + script)


@test(limit=240)
def the_examples_of_the_longer_manual_run():
    need("git", "rsync")
    text = read_file(os.path.join(ROOT, "packaging/doc/manual.md")).decode()
    sessions = re.findall(r"```console\n(.*?)```", text, re.S)
    check(len(sessions) >= 2, "sessions: %r" % sessions)
    base = os.environ["OCRFS_TEST_DIR"]
    os.mkdir(base + "/scans")
    os.mkdir(base + "/texts")
    shutil.copy(os.path.join(DATA, "samples/receipt.jpg"), base + "/scans")
    write_file(base + "/scans/bad.png", b"no image")
    # What the index says of a file that has just changed is not sure.
    wait_for(lambda: time.time() - os.stat(base + "/scans/bad.png").st_ctime > 3, "an old file")
    for session in sessions:
        run("sh", "-c", "set -ex\n" + "\n".join(re.findall(r"^\$ (.*)$", session, re.M)),
            cwd=base, limit=200, env=PATH)
        check(not is_mounted(base + "/texts"), "still mounted after: " + session)
    kept = run("tar", "-xOf", "backup.tar", "./receipt.jpg.md", cwd=base)
    check(b"TOTAL" in kept.upper(), "in the archive: %r" % kept)
    equal(read_file(base + "/copy/receipt.jpg.md"), kept, "the copy")
    git = ["git", "--git-dir=archive/.git"]
    equal(run(*git, "ls-files", cwd=base), b"receipt.jpg.md\n", "files in git")
    equal(run(*git, "show", "HEAD:receipt.jpg.md", cwd=base), kept, "the text in git")


@test(mounts_something=False)
def commands_and_options_of_the_longer_manual_exist():
    text = read_file(os.path.join(ROOT, "packaging/doc/manual.md")).decode()
    known = {l[0] for l in listed("mount")} | {"nofail", "fsid", "ro"}
    for name in re.findall(r"`([a-z_]+)=", text) + re.findall(r"-o ([a-z_]+)=", text):
        check(name in known, "option %s" % name)
    for name in re.findall(r"`ocrfs ([a-z]+)", text):
        check(name in commands() or name == "help", "command %s" % name)


# --- completion -------------------------------------------------------------

def choices(command, option):
    """What may stand behind the = of an option."""
    return [l[1] for l in listed(command) if l[0] == option][0].split("|")


def verbs(command):
    """The words that the command begins with."""
    return [l[1] for l in listed() if l[0] == command][0].split(" ")[0].split("|")


# What is on the line, and what must be offered.
CASES = [
    ("ocrfs rea", ["read"]),
    ("ocrfs he", ["help"]),
    ("ocrfs warm --re", ["--refresh"]),
    ("ocrfs cache ", verbs("cache")),
    ("ocrfs read --precisi", ["--precision"]),
    ("ocrfs read --precision ", choices("read", "precision")),
    ("ocrfs read --precision=int", ["--precision=int8"]),
    ("ocrfs a b -o siz", ["size="]),
    ("ocrfs a b -o verify,siz", ["verify,size="]),
    ("ocrfs a b -o verify,stale=r", ["verify,stale=redo"]),
    ("ocrfs help war", ["warm"]),
    ("ocrfs help moun", ["mount"]),
]


def in_bash(line):
    script = """source "$1"; COMP_LINE=$2 COMP_POINT=${#2}; _ocrfs ocrfs
                printf '%s\\n' "${COMPREPLY[@]}" """
    # An "=" begins a word for readline, so bash offers what stands behind it.
    out = run("bash", "-c", script, "bash", COMPLETIONS + "/ocrfs.bash", line, env=PATH)
    before = re.match(r".*[=]|", line.split(" ")[-1])[0]
    return [before + word for word in out.decode().split()]


def in_fish(line):
    need("fish")
    out = run("fish", "-c", 'source $argv[1]; complete -C $argv[2]',
              COMPLETIONS + "/ocrfs.fish", line, env=PATH)
    return [l.split("\t")[0] for l in out.decode().splitlines()]


@test(mounts_something=False)
def bash_completes():
    for line, words in CASES:
        equal(sorted(in_bash(line)), sorted(words), line)
    everything = in_bash("ocrfs a b --")
    for name, *_ in listed("mount"):
        check(name[0] == "-" or "--" + name in everything, name + " is not offered")
    for name in commands():
        check(name in in_bash("ocrfs "), name + " is not offered")


@test(mounts_something=False)
def fish_completes():
    need("fish")
    for line, words in CASES:
        equal(sorted(in_fish(line)), sorted(words), line)
    for name, *_ in listed("mount"):
        check(name[0] == "-" or "--" + name in in_fish("ocrfs a b --"), name + " is not offered")
    for name in commands():
        check(name in in_fish("ocrfs "), name + " is not offered")


class Zsh:
    """zsh on a terminal, as a person has it in front of them."""

    def __init__(self):
        folder = os.environ["OCRFS_TEST_DIR"]
        shutil.copy(COMPLETIONS + "/ocrfs.zsh", folder + "/_ocrfs")
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execvpe("zsh", ["zsh", "-f", "-i"], dict(PATH, ZDOTDIR=folder))
        self.type("fpath=($PWD $fpath); autoload -Uz compinit; compinit -u -D; PS1='> '; "
                  # Ctrl-X says what stands on the line, and takes it away.
                  "show() { zle -I; print -r \"<<$BUFFER>>\"; BUFFER= }; zle -N show; "
                  "bindkey -e; bindkey '^X' show; "
                  "echo rea''dy\n")
        self.until("\nready")

    def type(self, text):
        os.write(self.fd, text.encode())

    def until(self, wanted):
        out = ""
        while wanted not in out:
            if not select.select([self.fd], [], [], 30)[0]:
                raise Failed("no %r from zsh, so far: %r" % (wanted, out))
            out += os.read(self.fd, 65536).decode(errors="replace")
        return out


@test(limit=120, mounts_something=False)
def zsh_completes():
    need("zsh")
    run("zsh", "-n", COMPLETIONS + "/ocrfs.zsh")
    zsh = Zsh()
    for line, words in CASES:
        zsh.type(line + "\t\x18")
        shown, written = zsh.until(">>").split("<<")
        # One word is written on the line, several are shown below it.
        if len(words) == 1:
            equal(re.sub(r"[ ,]?>>.*", "", written, flags=re.S),
                  line[:line.rindex(" ") + 1] + words[0], line)
        else:
            equal(sorted(w for w in shown.split() if w in words), sorted(words), line)


main()
