"""A server that looks like huggingface.co to `ocrfs model fetch`, and that can
be told to cut, to lie, to redirect, and to be busy."""
import hashlib
import http.server
import json
import os
import threading


class Hub:
    """Serves the files of `folder` as the model `repo`. Attributes to set:

    cut         bytes after which the connection of a file is closed
    cuts        for how many requests; None: for all
    busy        so many requests for files get 503 first
    ranges      False: ranges are ignored, always the whole file
    bare        True: no digests in the listing
    changed     {name: bytes}: content other than what is listed
    listed      {name: size}: sizes other than the files have
    more        entries to add to the listing
    requests    [(path, range)] that came, to look at
    """

    def __init__(self, folder, repo):
        self.folder, self.repo = folder, repo
        self.cut, self.cuts, self.busy, self.ranges, self.bare = None, None, 0, True, False
        self.changed, self.listed, self.more, self.requests = {}, {}, [], []
        self.lock = threading.Lock()
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                hub.answer(self)

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = "http://127.0.0.1:%d" % self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def content(self, name):
        if name in self.changed:
            return self.changed[name]
        with open(os.path.join(self.folder, name), "rb") as f:
            return f.read()

    def listing(self):
        entries = []
        for name in sorted(os.listdir(self.folder)):
            path = os.path.join(self.folder, name)
            if not os.path.isfile(path):
                continue
            with open(path, "rb") as f:
                data = f.read()
            entry = {"type": "file", "oid": hashlib.sha1(data).hexdigest(), "path": name,
                     "size": self.listed.get(name, len(data))}
            if name.endswith(".safetensors") and not self.bare:
                entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data)}
            entries.append(entry)
        return json.dumps(entries + self.more).encode()

    def answer(self, request):
        with self.lock:
            self.requests.append((request.path, request.headers.get("Range")))
            if request.path == "/api/models/%s/tree/main" % self.repo:
                return self.send(request, self.listing())
            if request.path.startswith("/%s/resolve/main/" % self.repo):
                # As the real one does: the bytes are elsewhere.
                request.send_response(302)
                request.send_header("Location", "/cdn/" + request.path.rsplit("/", 1)[1])
                request.send_header("Content-Length", "0")
                return request.end_headers()
            if not request.path.startswith("/cdn/"):
                return self.fail(request, 404)
            if self.busy > 0:
                self.busy -= 1
                return self.fail(request, 503)
            limit = None
            if self.cut is not None and self.cuts != 0:
                limit = self.cut
                self.cuts = self.cuts and self.cuts - 1
        try:
            data = self.content(os.path.basename(request.path))
        except OSError:
            return self.fail(request, 404)
        return self.send(request, data, request.headers.get("Range"), limit)

    @staticmethod
    def fail(request, status):
        request.send_response(status)
        request.send_header("Content-Length", "0")
        request.end_headers()

    def send(self, request, data, asked=None, limit=None):
        first = int(asked[6:].split("-")[0]) if asked and self.ranges else 0
        if first and first >= len(data):
            return self.fail(request, 416)
        request.send_response(206 if first else 200)
        if first:
            request.send_header("Content-Range", "bytes %d-%d/%d" % (
                first, len(data) - 1, len(data)))
        request.send_header("Content-Length", str(len(data) - first))
        request.end_headers()
        try:
            request.wfile.write(data[first:] if limit is None else data[first:first + limit])
        except OSError:
            pass  # it was curl that went
        request.close_connection = True
        return None
