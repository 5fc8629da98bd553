#!/usr/bin/env python3
"""Texts that must not be kept: cache forget, cache gc, cache=memory."""
import os
import sys
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from harness import *
from scans import *


def cache(m, *words, **how):
    return run(OCRFS, "cache", *words, "--cache", m.cache, **how)


def holds(m, text):
    """Files of the cache in which the text, or a part of it, stands."""
    part = text.split()[-1]
    return [name for name in os.listdir(m.cache)
            if part in read_file(os.path.join(m.cache, name))]


@test
def a_text_is_forgotten_while_the_mount_goes_on():
    with Mount() as m:
        for name in add_pictures(m, 3):
            read_file(m.text(name))
        texts = [right_text(m, "%04d.png" % i) for i in range(3)]
        check(holds(m, texts[1]), "it was not kept")
        # By the image, by the text below the mount, and by the folder.
        equal(cache(m, "forget", os.path.join(m.source, "0000.png")),
              b"1 text of 1 image forgotten\n", "by the image")
        equal(cache(m, "forget", m.text("0001.png")),
              b"1 text of 1 image forgotten\n", "by the text")
        equal((holds(m, texts[0]), holds(m, texts[1])), ([], []), "left in files")
        check(holds(m, texts[2]), "another text is gone")
        equal(cache(m, "forget", m.source), b"1 text of 3 images forgotten\n",
              "by the folder")
        done = pages_read(m)
        for i in range(3):
            equal(read_file(m.text("%04d.png" % i)), texts[i], "read again")
        equal(pages_read(m), done + 3, "pages read again")
        equal(cache(m, "verify").split(b",")[1].strip(), b"0 damaged", "verify")


@test
def an_image_that_changed_since():
    with Mount() as m:
        m.add("a.png", seed=1)
        read_file(m.text("a.png"))
        old = right_text(m, "a.png")
        with open(os.path.join(m.source, "a.png"), "r+b") as f:
            f.write(picture(2))
            f.truncate()
        equal(cache(m, "forget", os.path.join(m.source, "a.png")),
              b"1 text of 1 image forgotten\n", "what it was")
        equal(holds(m, old), [], "left in files")


@test
def what_cannot_be_forgotten_is_said():
    with Mount() as m:
        m.add("a.png", seed=1)
        write_file(os.path.join(m.source, "notes.txt"), b"no image")
        for path, words in ((os.path.join(m.source, "notes.txt"), b"neither an image"),
                            (os.path.join(m.source, "missing.png"), b"No such file")):
            _, out, err = cache(m, "forget", path, status=None, stderr=True)
            check(words in err and path.encode() in err, err)
        for words, why in ((["forget"], "forget PATH"), (["gc", "--unseen"], "needs an age"),
                           (["gc", "--unseen=x"], "'x' is no age"), (["gc", "x"], "'x'"),
                           (["clear", "--unseen=9d"], "not for clear"),
                           (["stat", "/tmp"], "stat takes no '/tmp'"),
                           (["foo"], "'foo', only stat"), ([], "usage")):
            status, _, err = cache(m, *words, status=None, stderr=True)
            check(status == 2 and why in err.decode(), "%s: %d %r" % (words, status, err))


@test
def gc_keeps_what_was_read():
    with Mount() as m:
        for name in add_pictures(m, 3):
            read_file(m.text(name))
        for words in (["gc", "--unseen=1h"], ["gc"]):
            check(b"0 texts, 0 sizes" in cache(m, *words), "something went")
        equal(read_file(m.text("0001.png")), right_text(m, "0001.png"), "text")


@test
def cache_memory_writes_nothing():
    home = os.path.join(os.environ["OCRFS_TEST_DIR"], "nest")
    os.mkdir(home)
    with Mount(args=["-o", "cache=memory"], env={
            "HOME": home, "XDG_CACHE_HOME": home + "/cache"}) as m:
        for name in add_pictures(m, 3):
            equal(read_file(m.text(name)), right_text(m, name), "text")
            size = os.stat(m.text(name)).st_size
            equal(size, len(right_text(m, name)), "size")
        equal((os.listdir(home), os.listdir(m.cache)), ([], []), "files")


main()
