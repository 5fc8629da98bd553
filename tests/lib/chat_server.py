"""A server that speaks as much of the OpenAI API as reading pages takes, made
of the standard library, and made to misbehave.

    with ChatServer() as server:
        Mount("url=" + server.url, engine="http")

It answers GET /v1/models, and POST /v1/chat/completions with text_of(request),
streamed, after `delay` seconds. What else it may do with a request is what
`act(request)` says, a function or coroutine of the test that answers by
request.reply(), stream(), raw(), drop(), or returns False to have it answered
as usual. Run as a program it serves until it is killed:

    chat_server.py [--delay MS] [--words N]     prints the port
"""
import asyncio
import base64
import inspect
import json
import logging
import ssl
import struct
import sys
import threading
import zlib

logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # writes to what has hung up

REASONS = {200: "OK", 301: "Moved", 302: "Found", 307: "Temporary Redirect",
           308: "Permanent Redirect", 400: "Bad Request", 401: "Unauthorized",
           404: "Not Found", 413: "Too Large", 429: "Too Many Requests",
           500: "Internal Server Error", 502: "Bad Gateway", 503: "Unavailable"}


def _chunk(kind, data):
    return (struct.pack(">I", len(data)) + kind + data +
            struct.pack(">I", zlib.crc32(kind + data)))


def numbered(number, width=308, height=84):
    """A gray PNG, not blank, with `number` in the first pixels of its first row.
    Its sides are multiples of 28: it is read without being resized."""
    row = bytearray(b"\xff" * width)
    for bit in range(32):
        if number >> bit & 1:
            row[bit] = 0
    bars = b"\xff" * 20 + (b"\0\0\0\xff\xff\xff\xff" * width)[:width - 40] + b"\xff" * 20
    blank = b"\xff" * width
    rows = [bytes(row)] + [bars if y % 16 in range(4, 13) else blank
                           for y in range(1, height)]
    raw = b"".join(b"\0" + r for r in rows)
    return (b"\x89PNG\r\n\x1a\n" +
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)) +
            _chunk(b"IDAT", zlib.compress(raw, 1)) + _chunk(b"IEND", b""))


def decode_png(data):
    """(width, height, channels, pixels) of a PNG without filters."""
    width, height, _, kind = struct.unpack(">IIBB", data[16:26])
    at, packed = 8, b""
    while at < len(data):
        size, name = struct.unpack(">I4s", data[at:at + 8])
        if name == b"IDAT":
            packed += data[at + 8:at + 8 + size]
        at += 12 + size
    channels = {0: 1, 2: 3}[kind]
    raw, stride = zlib.decompress(packed), 1 + width * channels
    if any(raw[y * stride] for y in range(height)):
        raise ValueError("a row is filtered")
    return width, height, channels, b"".join(
        raw[y * stride + 1:(y + 1) * stride] for y in range(height))


def number_of(png):
    """What numbered() put into it, from its first row alone."""
    size = struct.unpack(">I", png[33:37])[0]
    row = zlib.decompressobj().decompress(png[41:41 + size], 33)
    return sum((row[1 + bit] == 0) << bit for bit in range(32))


def text_for(number, words=40):
    """The text of page `number`: the same always, and of no other page."""
    return "Page %d says:%s\n" % (number, "".join(
        " %x" % (zlib.crc32(b"%d %d" % (number, i)) & 0xffff) for i in range(words)))


class Request:
    def __init__(self, connection, method, path, headers, body):
        self.connection, self.server = connection, connection.server
        self.method, self.path, self.headers, self.body = method, path, headers, body
        self.ended = False

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def png(self):
        begin = self.body.index(b"base64,") + 7
        return base64.b64decode(self.body[begin:self.body.index(b'"', begin)])

    def end(self):
        if not self.ended:
            self.ended = True
            self.server.in_flight -= 1

    def reply(self, status, body=b"", headers=(), kind="application/json"):
        if isinstance(body, (dict, list)):
            body = json.dumps(body).encode()
        lines = ["HTTP/1.1 %d %s" % (status, REASONS.get(status, "Other")),
                 "Content-Type: " + kind, "Content-Length: %d" % len(body), *headers]
        self.raw("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        self.server.count(status)
        self.end()

    def error(self, status, words, headers=()):
        self.reply(status, {"error": {"message": words, "type": "test"}}, headers)

    def raw(self, data):
        self.connection.transport.write(data)

    def drop(self):
        """Breaks the connection off, with a reset."""
        self.connection.transport.abort()
        self.end()

    def begin_stream(self):
        self.raw(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                 b"Transfer-Encoding: chunked\r\n\r\n")

    def event(self, data):
        data = b"data: " + (data if isinstance(data, bytes) else
                            json.dumps(data).encode()) + b"\n\n"
        self.raw(b"%x\r\n%s\r\n" % (len(data), data))

    def delta(self, text=None, finish=None):
        self.event({"object": "chat.completion.chunk", "choices": [
            {"index": 0, "delta": {} if text is None else {"content": text},
             "finish_reason": finish}]})

    def end_stream(self, done=True):
        if done:
            self.event(b"[DONE]")
        self.raw(b"0\r\n\r\n")
        self.server.count(200)
        self.end()

    def stream(self, text, finish="stop", pieces=4):
        """The usual answer."""
        self.begin_stream()
        step = max(1, -(-len(text) // pieces))
        for at in range(0, len(text), step):
            self.delta(text[at:at + step])
        self.delta(finish=finish)
        self.end_stream()


class Connection(asyncio.Protocol):
    def __init__(self, server):
        self.server, self.buffer, self.need = server, bytearray(), None

    def connection_made(self, transport):
        self.transport = transport
        self.server.connections += 1
        self.server.open.add(self)

    def connection_lost(self, _):
        self.server.open.discard(self)
        for request in [r for r in self.server.running if r.connection is self]:
            request.end()
            self.server.running.discard(request)

    def data_received(self, data):
        self.buffer += data
        while self.take():
            pass

    def take(self):
        if self.need is None:
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                return False
            lines = self.buffer[:end].decode("latin-1").split("\r\n")
            self.method, self.path, _ = lines[0].split(" ", 2)
            self.headers = {k.lower(): v for k, v in
                            (line.split(": ", 1) for line in lines[1:])}
            self.need = end + 4, int(self.headers.get("content-length", 0))
        head, length = self.need
        if len(self.buffer) < head + length:
            return False
        body = bytes(memoryview(self.buffer)[head:head + length])
        del self.buffer[:head + length]
        self.need = None
        self.server.handle(Request(self, self.method, self.path, self.headers, body))
        return True


class ChatServer:
    """In a thread of its own. `act` may be changed at any time.

    models    what GET /models tells; None: 404
    key       what every request must bring, else 401
    delay     seconds before a text
    act       see above
    tls       (certificate, key) files
    """

    def __init__(self, models=("tiny-ocr",), key=None, delay=0.0, act=None, words=40,
                 tls=None, host="127.0.0.1", port=0):
        self.models, self.key, self.delay, self.act = models, key, delay, act
        self.words, self.tls, self.host, self.port = words, tls, host, port
        self.connections = self.in_flight = self.most = self.looks = 0
        self.statuses, self.requests, self.seen = {}, 0, []
        self.open, self.running, self.keep = set(), set(), False
        self.loop = asyncio.new_event_loop()
        self.thread = None

    @property
    def url(self):
        return "%s://%s:%d/v1" % ("https" if self.tls else "http", self.host, self.port)

    def count(self, status):
        self.statuses[status] = self.statuses.get(status, 0) + 1

    def text_of(self, request):
        return text_for(number_of(request.png), self.words)

    # - life -

    async def _listen(self):
        context = None
        if self.tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*self.tls)
        self.listener = await self.loop.create_server(
            lambda: Connection(self), self.host, self.port, ssl=context, backlog=512)
        self.port = self.listener.sockets[0].getsockname()[1]

    def start(self):
        self.loop.run_until_complete(self._listen())
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        return self

    def _die(self):
        self.listener.close()
        for connection in list(self.open):
            connection.transport.abort()

    def die(self):
        """At once: nobody listens any more and all connections are reset."""
        done = threading.Event()
        self.loop.call_soon_threadsafe(lambda: (self._die(), done.set()))
        done.wait(10)

    def revive(self):
        """Listens again, at the same port."""
        asyncio.run_coroutine_threadsafe(self._listen(), self.loop).result(10)

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.die()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)

    # - requests -

    def handle(self, request):
        if self.key is not None and \
                request.headers.get("authorization") != "Bearer " + self.key:
            request.server.in_flight += 1
            return request.error(401, "wrong key: " +
                                 request.headers.get("authorization", "none"))
        self.in_flight += 1
        if not request.path.split("?")[0].endswith(("/v1/models", "/v1/chat/completions")):
            return request.error(404, "no such page")
        if request.method == "GET":
            self.looks += 1
            return self._models(request)
        self.requests += 1
        self.most = max(self.most, self.in_flight)
        self.running.add(request)
        if self.keep:
            self.seen.append(request)
        if self.act:
            return self.loop.create_task(self._act(request))
        return self._later(request)

    def _models(self, request):
        if self.models is None:
            return request.error(404, "no such page")
        return request.reply(200, {"object": "list", "data": [
            {"id": m, "object": "model"} for m in self.models]})

    def _later(self, request):
        text = self.text_of(request)
        if self.delay:
            self.loop.call_later(self.delay, self._answer, request, text)
        else:
            self._answer(request, text)

    def _answer(self, request, text):
        if request in self.running:
            request.stream(text)
            self.running.discard(request)

    async def _act(self, request):
        result = self.act(request)
        if inspect.isawaitable(result):
            result = await result
        if result is False:
            self._later(request)
        else:
            self.running.discard(request)


def main():
    values = dict(zip(sys.argv[1::2], sys.argv[2::2]))
    server = ChatServer(delay=float(values.get("--delay", 0)) / 1000,
                        words=int(values.get("--words", 40)))
    if "--any" in values:  # pages of any size: the text is of the bytes
        server.text_of = lambda r: text_for(zlib.crc32(r.body), server.words)
    server.loop.run_until_complete(server._listen())
    print(server.port, flush=True)
    server.loop.run_forever()


if __name__ == "__main__":
    main()
