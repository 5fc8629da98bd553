#!/usr/bin/env python3
"""Documents of many pages: TIFF and PDF."""
import os
import sys
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from documents import *
from harness import *
from scans import *

MAKERS = {"TIFF": (".tif", tiff), "PDF": (".pdf", pdf)}


def makers():
    """(ending, function) of what this build reads."""
    known = run(os.path.join(BUILD, "ocrfs-engine"), "--formats").decode()
    found = [m for name, m in MAKERS.items() if "ok\t%s\t" % name in known]
    if not found:
        skip("this build reads neither TIFF nor PDF")
    return found


def jobs(m):
    return m.status()["queue"]["reading"]


@test(limit=120)
def a_document_has_the_texts_of_its_pages():
    pictures = [picture(i) for i in range(9)] + [blank()]
    with Mount() as m:
        for ending, make in makers():
            m.add("batch" + ending, data=make(pictures))
            text = read_file(m.text("batch" + ending))
            pages = pages_of(text)
            equal(len(pages), 10, "pages of " + ending)
            for i in range(9):
                equal(pages[i], null_text(pictures[i]), "page %d of %s" % (i + 1, ending))
            equal(pages[9], b"", "the blank page of " + ending)
            equal(os.stat(m.text("batch" + ending)).st_size, len(text), "size after it")
            # One page needs no marker.
            m.add("single" + ending, data=make(pictures[:1]))
            single = pages_of(b"<!-- page 1 -->\n" + read_file(m.text("single" + ending)))
            equal(single, [null_text(pictures[0])], "a single page of " + ending)


@test(limit=60)
def a_page_that_is_turned():
    if (".pdf", pdf) not in makers():
        skip("this build does not read PDF")
    with Mount() as m:
        m.add("a.pdf", data=pdf([picture(1)], rotate=90))
        check(read_file(m.text("a.pdf")).startswith(b"# null 96x320\n"), "not turned")


@test(limit=120)
def an_added_page_costs_one_reading():
    old, new = [picture(i) for i in range(6)], picture(7, 400, 100)
    for ending, make in makers():
        with Mount() as m:
            m.add("a" + ending, data=make(old))
            read_file(m.text("a" + ending))
        # Now nothing of the old size can be read.
        with Mount(engine="null:fail=320x96", cache=m.cache, allow=["failed", "was told"]) as n:
            n.add("b" + ending, data=make(old[:3] + [new] + old[3:]))
            pages = pages_of(read_file(n.text("b" + ending)))
            equal(pages, [null_text(p) for p in old[:3] + [new] + old[3:]], "pages")
            n.add("c" + ending, data=make(old + [picture(8)]))
            fails(errno.EIO, open, n.text("c" + ending))
            wait_for(lambda: "page 7: " in n.log(), "the page that failed in the log")


@test(limit=120)
def its_text_comes_whole_through_programs():
    pictures = [picture(i, 160, 48) for i in range(300)]
    ending, make = makers()[-1]
    programs = {"cat": ["cat"], "busybox": ["busybox", "cat"]}
    with Mount() as m:
        for i, (name, argv) in enumerate(programs.items()):
            need(argv[0])
            m.add(name + ending, data=make(pictures[i:] + pictures[:i]))
            out = run(*argv, m.text(name + ending))
            equal(pages_of(out), [null_text(p) for p in pictures[i:] + pictures[:i]], name)
        m.add("copied" + ending, data=make(pictures[::-1]))
        target = os.path.join(m.base, "copy")
        run("cp", m.text("copied" + ending), target)
        equal(pages_of(read_file(target)), [null_text(p) for p in pictures[::-1]], "cp")
        m.add("archived" + ending, data=make(pictures[7:] + pictures[:7]))
        run("tar", "-C", m.path, "-cf", target, "archived" + ending + ".md", stderr=True,
            status=None)
        out = run("tar", "-xOf", target)
        equal(pages_of(out.rstrip(b"\0")), [null_text(p) for p in pictures[7:] + pictures[:7]],
              "tar")


@test(limit=120)
def it_can_be_interrupted_and_goes_on_where_it_was():
    pictures = [picture(i, 160, 48) for i in range(400)]
    ending, make = makers()[0]
    with Mount(engine="null:50ms:workers=2") as m:
        name = "long" + ending
        m.add(name, data=make(pictures))
        m.add("other.png", seed=1)
        reader = start("cat", m.text(name))
        job = wait_for(lambda: [j for j in jobs(m) if j["pages_done"] >= 3], "three pages", 30)[0]
        equal((job["path"], job["pages"]), (name, 400), "what status says")
        people = read_file(os.path.join(m.path, ".ocrfs/status")).decode()
        check(" of 400 pages" in people, "status does not tell the pages")
        # Another image does not wait for 400 pages.
        equal(read_file(m.text("other.png")), right_text(m, "other.png"), "another image")
        check(reader.poll() is None and jobs(m), "it was read too soon for this test")
        reader.kill()
        reader.wait()
        wait_for(lambda: not jobs(m), "the end of its job")


@test(limit=120)
def the_engine_dies_in_the_middle():
    pictures = [picture(i, 160, 48) for i in range(60)]
    ending, make = makers()[0]
    with Mount(engine="null:40ms:workers=2", allow=["engine"]) as m:
        m.add("a" + ending, data=make(pictures))
        reader = start("cat", m.text("a" + ending), stdout=-1)
        wait_for(lambda: [j for j in jobs(m) if j["pages_done"] >= 5], "five pages")
        for pid in m.engine_pids():
            os.kill(pid, signal.SIGKILL)
        out, _ = reader.communicate(timeout=100)
        equal(reader.returncode, 0, "exit status of cat")
        equal(pages_of(out), [null_text(p) for p in pictures], "its text")


@test(limit=120)
def a_page_that_crashes_the_engine_is_named():
    ending, make = makers()[0]
    pictures = [picture(i) for i in range(5)]
    with Mount(engine="null:crash=333x97", allow=["."]) as m:
        m.add("bad" + ending, data=make(pictures[:3] + [picture(9, 333, 97)] + pictures[3:]))
        fails(errno.EIO, open, m.text("bad" + ending))
        m.add("good" + ending, data=make(pictures))
        equal(pages_of(read_file(m.text("good" + ending))), [null_text(p) for p in pictures],
              "a document after it")


@test(limit=60)
def what_cannot_be_read():
    found = dict(makers())
    with Mount(allow=["."]) as m:
        if ".tif" in found:
            whole = tiff([picture(1), picture(2)])
            m.add("cut.tif", data=whole[:-40])
            fails(errno.EBADMSG, open, m.text("cut.tif"))
            m.add("many.tif", data=tiff([blank(8, 8)] * 10001))
            fails(errno.EFBIG, open, m.text("many.tif"))
        if ".pdf" in found:
            whole = pdf([picture(1), picture(2)])
            m.add("cut.pdf", data=whole[:len(whole) // 2])
            fails(errno.EBADMSG, open, m.text("cut.pdf"))
            m.add("no.pdf", data=b"%PDF-1.4\nnothing more\n%%EOF\n")
            fails(errno.EBADMSG, open, m.text("no.pdf"))
            # By a handler of its own, as a rights server has it.
            m.add("locked.pdf", data=pdf([picture(1)], extra=LOCKED))
            fails(errno.EOPNOTSUPP, open, m.text("locked.pdf"))
            check("encrypted" in m.log(), "the log does not say that it is encrypted")


@test(limit=120, mounts_something=False)
def scans_give_the_same_pixels_alone_and_as_pages():
    if len(makers()) < len(MAKERS):
        skip("this build lacks TIFF or PDF")
    script = os.path.join(ROOT, "tests", "accuracy", "same_pages.py")
    out = run(sys.executable, script, "--engine", "null", "recibo-recorte-pt",
              "newspaper-clipping-en", "fax-1bit-en", env=dict(os.environ, BUILD=BUILD))
    last = out.decode().splitlines()[-1]
    note(last)
    check("3 pages; TIFF: 3 the same, PDF: 3;" in last, out.decode())


@test(limit=60)
def the_text_that_is_in_a_pdf():
    if (".pdf", pdf) not in makers():
        skip("this build does not read PDF")
    formats = os.path.join(DATA, "formats")
    born, scan = (read_file(os.path.join(formats, name))
                  for name in ("pdf-text.pdf", "pdf-image-2pages.pdf"))
    with Mount("pdf=text") as m:
        m.add("born.pdf", data=born)
        m.add("scan.pdf", data=scan)
        equal(read_file(m.text("born.pdf")), b"OCRFS 2026\n", "text that is in it")
        for page in pages_of(read_file(m.text("scan.pdf"))):
            check(page.startswith(b"# null "), "a scan was not read")
    with Mount(cache=m.cache) as n:
        n.add("born.pdf", data=born)
        check(read_file(n.text("born.pdf")).startswith(b"# null "), "not read without pdf=text")


# The standard handler, with a password that nobody has.
LOCKED = (b"/Encrypt << /Filter /Standard /V 1 /R 2 /P -4 /O <%s> /U <%s> >> /ID [<00> <00>]" %
          (b"11" * 32, b"22" * 32))

main()
