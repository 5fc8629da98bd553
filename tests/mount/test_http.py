#!/usr/bin/env python3
"""Pages read by servers: what is sent, which errors are whose, several servers,
keys, redirects, and servers that say what no server should."""
import os
import sys
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from chat_server import *
from harness import *

for name in ("OPENAI_API_KEY", "http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy",
             "ALL_PROXY", "no_proxy", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"):
    os.environ.pop(name, None)

PLUGIN = os.path.join(BUILD, "ocrfs-http.so")
KEY = "sk-test-0123456789"


def base():
    return os.environ["OCRFS_TEST_DIR"]


def http(*servers, options=(), **kwargs):
    if not os.path.exists(PLUGIN):
        skip("ocrfs was built without libcurl")
    return Mount("url=" + ";".join(s if isinstance(s, str) else s.url for s in servers),
                 *options, engine="http", **kwargs)


def add(m, count, first=0):
    for i in range(first, first + count):
        m.add("%04d.png" % i, data=numbered(i))
    return ["%04d.png" % i for i in range(first, first + count)]


def text(m, name):
    return read_file(m.text(name)).decode()


def read(server, *more, paths=None, env=None, status=0):
    """`ocrfs read` of one page (or paths): its output and what it said."""
    if not os.path.exists(PLUGIN):
        skip("ocrfs was built without libcurl")
    if paths is None:
        write_file(base() + "/page.png", numbered(7))
        paths = [base() + "/page.png"]
    os.makedirs(base() + "/run", 0o700, exist_ok=True)
    got, out, err = run(OCRFS, "read", "--engine", "http", "--url",
                        server if isinstance(server, str) else server.url,
                        "--runtime", base() + "/run", "--cache", "memory", *more, *paths,
                        env=dict(os.environ, **(env or {})), status=None, stderr=True)
    if status is not None:
        equal(got, status, "exit of ocrfs read: " + err.decode())
    return out.decode(), err.decode()


def pages(m):
    return m.status()["pages"]["done"], m.status()["pages"]["failed"]


def engine_log(folder):
    return "".join(read_file(os.path.join(folder, n)).decode(errors="replace")
                   for n in os.listdir(folder) if n.endswith(".log"))


# --- what is sent -----------------------------------------------------------

@test
def a_page_is_asked_for_once_and_kept():
    with ChatServer() as server, http(server) as m:
        server.keep = True
        names = add(m, 3)
        for i, name in enumerate(names):
            equal(text(m, name), text_for(i), "text")
            equal(os.stat(m.text(name)).st_size, len(text_for(i)), "size")
        equal(server.requests, 3, "requests")
        body = server.seen[0].json
        equal(body["model"], "tiny-ocr", "model")
        equal((body["temperature"], body["top_p"], body["max_tokens"], body["stream"]),
              (0, 1, 4096, True), "settings")
        check("repetition_penalty" not in body, "not sent unless it is wanted")
        equal(len(body["messages"]), 1, "messages")
        content = body["messages"][0]["content"]
        equal([part["type"] for part in content], ["image_url"], "parts")
        check(content[0]["image_url"]["url"].startswith("data:image/png;base64,"), "data URL")
        equal(decode_png(server.seen[0].png), decode_png(numbered(0)), "pixels")
        check("authorization" not in server.seen[0].headers, "no key was given")
        m.unmount()
        m.start()
        equal(text(m, names[2]), text_for(2), "text after a remount")
        equal(server.requests, 3, "requests after a remount")


@test
def settings_are_sent_and_have_texts_of_their_own():
    with ChatServer() as server, http(server) as m:
        server.keep = True
        name, = add(m, 1)
        text(m, name)
        m.unmount()
        m.options += ["prompt=Read \\, \"it\"", "top_p=0.9", "temperature=0.2",
                      "repetition_penalty=1.1", "max_tokens=77"]
        m.start()
        equal(text(m, name), text_for(0), "text")
        body = server.seen[1].json
        equal((body["temperature"], body["top_p"], body["max_tokens"],
               body["repetition_penalty"]), (0.2, 0.9, 77, 1.1), "settings")
        equal(body["messages"][0]["content"][1],
              {"type": "text", "text": "Read , \"it\""}, "prompt")


@test
def pages_are_sent_at_the_size_a_model_reads():
    sizes = [(picture(1, 1000, 700), (1008, 700)), (picture(2, 2480, 3508), (1092, 1540)),
             (picture(3, 300, 80), (308, 84))]
    with ChatServer() as server, http(server) as m:
        server.keep, server.text_of = True, lambda request: "text"
        for i, (data, size) in enumerate(sizes):
            m.add("%d.png" % i, data=data)
            text(m, "%d.png" % i)
            equal(decode_png(server.seen[i].png)[:2], size, "size sent")


@test
def status_and_doctor_say_where_images_go():
    with ChatServer() as server, http(server) as m:
        text(m, *add(m, 1))
        status = m.status()
        equal((status["recogniser"], status["sent_to"]), ("http", [server.url]), "status.json")
        equal(status["engine"]["details"], "model tiny-ocr; at the start: %s answered" % server.url[:-3])
        people = read_file(m.path + "/.ocrfs/status").decode()
        check("image bytes go to a server on this machine, " + server.url in people, people)
        out = run(OCRFS, "doctor", "--url", server.url, "--runtime", m.runtime,
                  "--cache", "memory").decode()
        check(re.search("^note +network +image bytes go to .*" + server.url, out, re.M), out)
        check(re.search("^ok +recogniser +http .*tiny-ocr", out, re.M), out)
    out = run(OCRFS, "doctor", "--engine", "http", "--url", "http://192.0.2.1:9/v1",
              "--runtime", m.runtime, "--cache", "memory", status=1, limit=90).decode()
    check("image bytes leave this machine, to http://192.0.2.1:9/v1" in out, out)
    check("not encrypted" in out, out)


@test
def without_streaming_and_with_parts():
    def act(request):
        request.reply(200, {"choices": [{"finish_reason": "stop", "message": {
            "role": "assistant", "content": answers[request.server.requests - 1]}}]})

    answers = ["plain", [{"type": "text", "text": "in "}, {"type": "text", "text": "parts"}]]
    with ChatServer(act=act) as server, http(server) as m:
        names = add(m, 2)
        equal([text(m, n) for n in names], ["plain\n", "in parts\n"], "texts")


# --- which model ------------------------------------------------------------

@test(mounts_something=False)
def the_model_is_found_or_named():
    with ChatServer(models=["embed", "LightOCR-2", "chat"]) as server:
        server.keep = True
        read(server)
        equal(server.seen[-1].json["model"], "LightOCR-2", "the one that reads")
        read(server, "--model", "chat")
        equal(server.seen[-1].json["model"], "chat", "the one that was named")
        _, said = read(server, "--model", "none", status=None)
        check("does not serve none, but embed, LightOCR-2, chat" in said, said)
    with ChatServer(models=["a", "b"]) as server:
        _, said = read(server, status=None)
        check("several models, name one with model=: a, b" in said, said)
    with ChatServer(models=None) as server:
        server.keep = True
        read(server, "--model", "any/name")
        equal(server.seen[-1].json["model"], "any/name", "of a server without a list")


# --- errors -----------------------------------------------------------------

def no_json(r):
    r.reply(200, b"<html>no model here</html>", kind="text/html")


def half_a_stream(r):
    r.begin_stream()
    r.delta("half a te")
    r.raw(b"0\r\n\r\n")
    r.end()


def broken_stream(r):
    r.begin_stream()
    r.delta("half a te")
    r.drop()


def half_a_json(r):
    r.reply(200, b'{"choices":[{"finish_reason":"stop","message":{"content":"half a')


def too_short(r):  # says more bytes than it sends
    body = b'{"choices":[{"finish_reason":"stop","message":{"content":"x"}}]}'
    r.raw(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
          % (len(body) + 100, body))
    r.connection.transport.close()
    r.end()


def too_long(r):  # says fewer
    body = b'{"choices":[{"finish_reason":"stop","message":{"content":"x"}}]}'
    r.raw(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
          % (len(body) - 20, body))
    r.connection.transport.close()
    r.end()


async def ten_gigabytes(r):
    r.raw(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
          b"Content-Length: 10000000000\r\n\r\n{\"choices\":\"")
    for _ in range(10000):
        if r.connection.transport.is_closing():
            break
        r.raw(b"x" * 1000000)
        await asyncio.sleep(0)
        while r.connection.transport.get_write_buffer_size() and \
                not r.connection.transport.is_closing():
            await asyncio.sleep(0.001)
    r.end()


async def endless_stream(r):
    r.begin_stream()
    word = 0
    while not r.connection.transport.is_closing():
        r.delta("".join(" %x" % (zlib.crc32(b"%d" % (word + i))) for i in range(1000)))
        word += 1000
        await asyncio.sleep(0)
    r.end()


def error_in_stream(r):
    r.begin_stream()
    r.delta("half a te")
    r.event({"error": {"message": "CUDA out of memory", "code": 500}})
    r.end_stream()


def aborted(r):
    r.begin_stream()
    r.delta("half a te")
    r.delta(finish="abort")
    r.end_stream()


def no_http(r):
    r.raw(b"220 mail.example ESMTP\r\n")
    r.connection.transport.close()
    r.end()


NEVER_A_TEXT = [no_json, half_a_stream, broken_stream, half_a_json, too_short, too_long,
                ten_gigabytes, endless_stream, error_in_stream, aborted, no_http,
                lambda r: r.error(500, "oh"), lambda r: r.error(502, "bad gateway"),
                lambda r: r.drop(),
                lambda r: r.reply(200, {"choices": []}),
                lambda r: r.reply(200, b"[" * 100000),
                lambda r: r.raw(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 1000000) or r.drop()]


@test(limit=120)
def what_is_no_answer_is_tried_again():
    """Every fault twice, then a text; good pages in between."""
    def act(request):
        number = number_of(request.png)
        tries[number] = tries.get(number, 0) + 1
        if number < len(NEVER_A_TEXT) and tries[number] <= 2:
            return NEVER_A_TEXT[number](request)
        return False

    tries = {}
    with ChatServer(act=act) as server, http(server, allow=["is not used for now"]) as m:
        names = add(m, 2 * len(NEVER_A_TEXT))
        run(OCRFS, "warm", m.path, limit=100)
        for i, name in enumerate(names):
            equal(text(m, name), text_for(i), "text of page %d" % i)
            equal(tries[i], 3 if i < len(NEVER_A_TEXT) else 1, "tries of page %d" % i)


@test(limit=180)
def what_is_never_an_answer_is_never_a_text():
    def act(request):
        number = number_of(request.png)
        return faults[number](request) if number < len(faults) else False

    faults = list(NEVER_A_TEXT)
    with ChatServer(act=act) as server, http(server, allow=["failed"]) as m:
        names = add(m, 3 * len(faults))
        run(OCRFS, "warm", m.path, status=1, limit=150)
        equal(pages(m), (2 * len(faults), len(faults)), "pages made and failed")
        for error in m.status()["errors"]["last"]:
            check(error["reason"].startswith(server.url[:-3] + ": "), error["reason"])
            check("tries)" in error["reason"], error["reason"])
        faults.clear()
        m.unmount()
        m.start()  # what failed is not kept
        for i, name in enumerate(names[:4]):
            equal(text(m, name), text_for(i), "the text at last")


@test
def what_a_server_refuses_is_the_pages_fault():
    def act(request):
        if number_of(request.png) == 1:
            request.error(400, "image is too\nlarge \x1b[31mfor me")
        else:
            return False

    with ChatServer(act=act) as server, http(server, allow=["failed"]) as m:
        names = add(m, 3)
        fails(errno.EIO, read_file, m.text(names[1]))
        equal(server.requests, 1, "no other try")
        equal(text(m, names[2]), text_for(2), "the next page")
        reason = m.status()["errors"]["last"][0]["reason"]
        check("HTTP 400: image is too" in reason and "for me" in reason, reason)
        check(reason.isprintable(), reason)
        check(reason in m.log(), "in the log")


@test
def the_end_by_max_tokens_is_said():
    with ChatServer(act=lambda r: r.stream("a text that was cut", finish="length")) as server, \
            http(server, allow=["longer than"]) as m:
        name, = add(m, 1)
        equal(text(m, name), "a text that was cut\n", "text")
        wait_for(lambda: name in m.log(), "a line with its path")


@test
def a_filtered_page_is_no_text():
    with ChatServer(act=lambda r: r.stream("", finish="content_filter")) as server, \
            http(server, allow=["failed"]) as m:
        fails(errno.EIO, read_file, m.text(*add(m, 1)))
        equal(server.requests, 1, "requests")


@test
def a_model_that_repeats_itself_is_hung_up_on():
    async def act(request):
        request.begin_stream()
        while not request.connection.transport.is_closing():
            request.delta("again and again ")
            await asyncio.sleep(0)
        hung.append(True)
        request.end()

    hung = []
    with ChatServer(act=act) as server, http(server, allow=["repeat", "loop"]) as m:
        got = text(m, *add(m, 1))
        check(got.startswith("again and again") and len(got) < 2000, repr(got))
        wait_for(lambda: hung, "end of the connection")
        equal(server.requests, 1, "requests")


@test
def slow_and_in_small_pieces():
    async def act(request):
        answer = text_for(number_of(request.png))
        request.begin_stream()
        whole = b": a comment\r\n\r\n"
        for at in range(0, len(answer), 9):
            whole += b'data: {"choices":[{"index":0,\r\ndata:"delta":{"content":%s}}]}\r\n\r\n' \
                % json.dumps(answer[at:at + 9]).encode()
        whole += b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\r\n\r\n' \
                 b'data: {"choices":[],"usage":{}}\r\n\r\ndata: [DONE]'
        for at in range(0, len(whole), 7):
            part = whole[at:at + 7]
            request.raw(b"%x\r\n%s\r\n" % (len(part), part))
            await asyncio.sleep(0.001)
        request.raw(b"0\r\n\r\n")
        request.end()

    with ChatServer(act=act) as server, http(server, options=["http_timeout=1"]) as m:
        names = add(m, 4)
        for i, name in enumerate(names):
            equal(text(m, name), text_for(i), "text")
        equal(server.requests, 4, "requests")


@test
def a_server_that_says_nothing_more_is_given_up():
    async def act(request):
        if request.server.requests > 1:
            return False
        request.begin_stream()
        request.delta("half a te")
        await asyncio.sleep(1000)

    with ChatServer(act=act) as server, http(server, options=["http_timeout=1"]) as m:
        equal(text(m, *add(m, 1)), text_for(0), "text")
        equal(server.requests, 2, "requests")


@test
def an_answer_that_is_whole_needs_no_end_of_the_connection():
    def act(request):
        request.begin_stream()
        request.delta("all of it")
        request.delta(finish="stop")
        request.event(b"[DONE]")

    with ChatServer(act=act) as server, http(server) as m:
        equal(text(m, *add(m, 1)), "all of it\n", "text")
        equal(server.requests, 1, "requests")


# --- busy servers -----------------------------------------------------------

@test
def retry_after_is_kept():
    def act(request):
        times.append(time.monotonic())
        return request.error(503, "later", ["Retry-After: 2"]) if len(times) == 1 else False

    times = []
    with ChatServer(act=act) as server, http(server) as m:
        equal(text(m, *add(m, 1)), text_for(0), "text")
        check(times[1] - times[0] >= 1.9, "after %.2f s" % (times[1] - times[0]))


@test(limit=120)
def a_storm_of_429_settles():
    """A server for two at once, with more pages than that."""
    async def act(request):
        if request.server.in_flight > 2:
            return request.error(429, "too many")
        await asyncio.sleep(0.02)
        return False

    with ChatServer(act=act) as server, http(server) as m:
        names = add(m, 150)
        run(OCRFS, "warm", m.path)
        for i, name in enumerate(names):
            equal(text(m, name), text_for(i), "text")
        equal(pages(m), (150, 0), "pages made and failed")
        equal(server.statuses[200] - server.looks, 150, "texts that were made")
        note("refused %d times for 150 pages" % server.statuses.get(429, 0))
        check(server.statuses.get(429, 0) >= 1, "there was a storm")
        check(server.statuses[429] < 150, "%d refusals" % server.statuses[429])


@test(limit=120)
def more_at_once_as_long_as_it_helps():
    with ChatServer(delay=1) as server, http(server) as m:
        add(m, 150)
        run(OCRFS, "warm", m.path)
        note("at once: %d" % server.most)
        check(server.most > 16, "at once: %d" % server.most)


# --- several servers --------------------------------------------------------

@test(limit=180)
def one_of_two_dies_in_the_middle():
    with ChatServer(delay=0.05) as one, ChatServer(delay=0.05) as two, \
            http(one, two, allow=["is not used for now"]) as m:
        names = add(m, 300)
        warm = start(OCRFS, "warm", m.path)
        wait_for(lambda: one.requests > 40 and two.requests > 40, "both are at work", 60)
        two.die()
        equal(warm.wait(120), 0, "exit of warm: %s" % warm.stderr.read())
        for i, name in enumerate(names):
            equal(text(m, name), text_for(i), "text")
        equal(pages(m), (300, 0), "pages made and failed")
        stat = run(OCRFS, "cache", "stat", "--cache", m.cache).decode()
        check(re.search(r"\b300\b", stat), stat)
        done = one.statuses[200] - one.looks + two.statuses[200] - two.looks
        check(300 <= done <= 300 + two.most, "%d texts were made for 300 pages" % done)
        equal(two.revive(), None)
        before = two.requests
        add(m, 100, first=300)
        run("find", m.source, "-type", "f", "-exec", "touch", "-d", "2020-01-01", "{}", "+")
        wait_for(lambda: two.looks > 1, "a look at the server that died", 60)
        run(OCRFS, "warm", m.path)
        check(two.requests > before, "it is used again")


@test(limit=90)
def without_any_server_pages_fail_and_later_do_not():
    with ChatServer() as server, http(server, allow=["no engine", "failed", "gone"]) as m:
        names = add(m, 3)
        text(m, names[0])
        server.die()
        waiting = start("cat", m.text(names[1]))
        wait_for(lambda: m.status()["queue"]["running"], "the page is asked for")
        server.revive()
        equal(waiting.communicate(timeout=60)[0].decode(), text_for(1), "text after a while")
        equal(text(m, names[2]), text_for(2), "the next one")


@test(limit=120)
def a_server_that_was_gone_for_long_is_used_at_once():
    with ChatServer() as server, \
            http(server, allow=["engine-gone", "is not used"]) as m:
        names = add(m, 3)
        text(m, names[0])
        server.die()
        for name in names[1:]:  # the first waits 30 s, the other for one look
            fails(errno.EIO, text, m, name)
        server.revive()
        equal(text(m, names[1]), text_for(1), "the text that failed before")
        equal(text(m, names[2]), text_for(2), "the other one")


@test(limit=90)
def a_mount_waits_for_a_server_that_starts_later():
    with ChatServer() as server:
        server.die()
        with http(server, allow=["no engine", "known texts are served"]) as m:
            waiting = start("cat", m.text(*add(m, 1)))
            wait_for(lambda: m.status()["queue"]["waiting"]["interactive"],
                     "the page to wait")
            server.revive()
            equal(waiting.communicate(timeout=60)[0].decode(), text_for(0), "text")


@test(mounts_something=False, limit=90)
def a_server_that_is_not_there_is_named():
    with ChatServer() as server:
        url = server.url
    begin = time.monotonic()
    _, said = read(url, status=None)
    check(url[:-3] in said and re.search("connect", said, re.I), said)
    note("said after %.1f s" % (time.monotonic() - begin))
    with ChatServer() as server:
        _, said = read(server.url[:-3] + "/wrong/v2", status=None)
        check("does it end with /v1" in said, said)


# --- keys -------------------------------------------------------------------

def seen_of(pids):
    """Command lines and environments of these processes."""
    lines, environments = b"", b""
    for pid in pids:
        with contextlib.suppress(OSError):
            lines += read_file("/proc/%d/cmdline" % pid)
            if _program(pid) == "ocrfs-engine" and b"--decode-helper" in \
                    read_file("/proc/%d/cmdline" % pid):
                environments += read_file("/proc/%d/environ" % pid)
    return lines, environments


def _program(pid):
    return os.path.basename(os.readlink("/proc/%d/exe" % pid))


@test
def keys_come_from_a_file_or_the_environment():
    path = base() + "/key"
    write_file(path, KEY.encode() + b"\n")
    os.chmod(path, 0o600)
    ways = [({"options": ["api_key_file=" + path]}, path), ({"env": {"OPENAI_API_KEY": KEY}}, "")]
    for more, _ in ways:
        with ChatServer(key=KEY) as server, http(server, **more) as m:
            equal(text(m, *add(m, 1)), text_for(0), "text")
            pids = descendants(int(os.environ["OCRFS_TEST_RUNNER"]))
            lines, environments = seen_of(pids)
            check(b"--decode-helper" in lines and KEY.encode() not in lines, "command lines")
            check(KEY.encode() not in environments, "environment of the helpers")
            said = m.log() + engine_log(m.runtime) + read_file(m.path + "/.ocrfs/status").decode()
            check(KEY not in said and KEY not in json.dumps(m.status()), "what is said")
            for name in os.listdir(m.runtime):
                check(KEY not in name, name)


@test(mounts_something=False)
def a_key_that_others_may_read_is_refused():
    path = base() + "/key"
    write_file(path, KEY.encode())
    os.chmod(path, 0o640)
    with ChatServer(key=KEY) as server:
        _, said = read(server, "--api-key-file", path, status=None)
        check("chmod 600 " + path in said, said)
        os.chmod(path, 0o600)
        # Each with folders of its own: an engine that failed lives on for moments.
        read(server, "--api-key-file", path, "--runtime", base() + "/second")
        write_file(path, b"two words")
        _, said = read(server, "--api-key-file", path, "--runtime", base() + "/third",
                       status=None)
        check("one key" in said, said)


@test
def a_wrong_key_is_said_and_not_shown():
    wrong = "sk-wrong-0123456789"
    with ChatServer(key=KEY) as server:
        _, said = read(server, env={"OPENAI_API_KEY": wrong}, status=None)
        check("HTTP 401" in said and "OPENAI_API_KEY" in said, said)
        check(wrong not in said and wrong not in engine_log(base() + "/run"), "the key is shown")
        # An engine with another key is another engine.
        out, _ = read(server, env={"OPENAI_API_KEY": KEY})
        equal(out, text_for(7), "text with the right key")
        out, _ = read(server, env={"OPENAI_API_KEY": wrong}, status=None)
        equal(out, "", "text with the wrong key")


@test
def a_key_that_is_changed_is_read_again():
    path = base() + "/key"
    write_file(path, KEY.encode())
    os.chmod(path, 0o600)
    with ChatServer(key=KEY) as server, http(server, options=["api_key_file=" + path]) as m:
        names = add(m, 2)
        text(m, names[0])
        server.key = "sk-new-9876543210"
        write_file(path, server.key.encode())
        equal(text(m, names[1]), text_for(1), "text with the new key")


# --- the way there ----------------------------------------------------------

@test
def redirects_stay_on_their_host():
    def act(request):
        target = request.path if away is None else away + "/chat/completions"
        if "again" not in request.path:
            return request.reply(code, headers=["Location: %s?again" % target])
        return False

    away = None
    with ChatServer(act=act, key=KEY) as server, ChatServer(host="127.0.0.2") as other, \
            http(server, options=["prefetch=off"], allow=["failed"],
                 env={"OPENAI_API_KEY": KEY}) as m:
        names = add(m, 8)
        for i, code in enumerate((307, 308, 302, 301)):
            equal(text(m, names[i]), text_for(i), "text behind a %d" % code)
        for i, target in enumerate((other.url, "http://127.0.0.1:%d/v1" % other.port,
                                    "file:///etc/passwd", "//127.0.0.2:%d/v1" % other.port)):
            away = target
            fails(errno.EIO, read_file, m.text(names[4 + i]))
            reason = m.status()["errors"]["last"][0]["reason"]
            check("another host" in reason, reason)
        equal((other.requests, other.looks), (0, 0), "requests at the other host")


@test
def certificates_are_checked():
    need("openssl")
    key, certificate = base() + "/tls.key", base() + "/tls.crt"
    run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
        "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out",
        certificate)
    with ChatServer(tls=(certificate, key)) as server:
        url = server.url.replace("127.0.0.1", "localhost")
        out, said = read(url, status=None)
        check("certificate" in said.lower() and not out, said)
        out, _ = read(url, env={"SSL_CERT_FILE": certificate})
        equal(out, text_for(7), "text")
        out, said = read(server.url, env={"SSL_CERT_FILE": certificate}, status=None)
        check("127.0.0.1" in said and not out, "a name that is not in it: " + said)


@test
def proxies_of_the_environment_are_taken():
    with ChatServer() as proxy:
        proxy.keep = True
        out, _ = read("http://192.0.2.1:8000/v1", env={"http_proxy": proxy.url[:-3]})
        equal(out, text_for(7), "text")
        equal(proxy.seen[0].path, "http://192.0.2.1:8000/v1/chat/completions", "asked for")


@test(mounts_something=False)
def addresses_that_are_none():
    for url, words in (("host:8000", "http://host:8000/v1"), ("ftp://host/v1", "no address"),
                       ("http://me:secret@host/v1", "api_key_file"),
                       ("http://host/v1?key=x", "no address")):
        _, said = read(url, status=2)
        check(words in said and "secret" not in said, said)
    status, _, said = run(OCRFS, "read", "--engine", "http", "x.png", status=2, stderr=True)
    check(b"url=http://HOST:8000/v1" in said, said)


# --- who waits --------------------------------------------------------------

@test(limit=90)
def who_waits_goes_first():
    async def act(request):
        if request.server.in_flight > 1:
            return request.error(429, "one at a time")
        await asyncio.sleep(0.05)
        return False

    with ChatServer(act=act) as server, http(server) as m:
        names = add(m, 60)
        warm = start(OCRFS, "warm", m.path)
        wait_for(lambda: m.status()["pages"]["done"] > 2, "warm is at work")
        equal(text(m, names[58]), text_for(58), "text")
        done = m.status()["pages"]["done"]
        check(done < 50, "%d of 60 were made before the one that somebody waited for" % done)
        equal(warm.wait(60), 0, "exit of warm")
        equal(m.status()["pages"]["failed"], 0, "failed")


@test
def who_goes_away_hangs_up():
    async def act(request):
        held.append(request)
        while not request.connection.transport.is_closing():
            await asyncio.sleep(0.01)
        left.append(request)
        request.end()

    held, left = [], []
    with ChatServer(act=act) as server, http(server) as m:
        reader = start("cat", m.text(*add(m, 1)))
        wait_for(lambda: held, "the page is sent")
        m.stop()
        wait_for(lambda: left, "its connection is closed")
        equal(reader.wait(10), 1, "exit of the reader")


@test(mounts_something=False)
def without_the_plugin_it_says_so():
    folder = base() + "/bin"
    os.makedirs(folder)
    for name in ("ocrfs", "ocrfs-engine"):
        shutil.copy(os.path.join(BUILD, name), folder)
    write_file(base() + "/page.png", numbered(1))
    _, _, said = run(folder + "/ocrfs", "read", "--url", "http://127.0.0.1:1/v1", "--runtime",
                     base() + "/run", "--cache", "memory", base() + "/page.png", status=None,
                     stderr=True)
    check(b"ocrfs-http.so" in said, said)


main()
