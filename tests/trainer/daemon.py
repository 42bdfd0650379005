"""A stand-in for the daemon of managed tiered checkpointing: what its client calls, kept in a dict."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


class Daemon:
    """`spaces`: name space → (rank, step) → (bytes, the client's checksum header)."""

    def __init__(self):
        self.spaces: dict[str, dict[tuple[int, int], tuple[bytes, str]]] = {}
        self.url = ""

    def answer(self, method: str, path: str, body: bytes, meta: str) -> tuple[int, bytes, str]:
        parts = urlsplit(path).path.removeprefix("/v1/cp/").split("/")
        kind, name = parts[:2]
        if kind == "namespaces":
            if method == "POST":
                self.spaces[name] = {}
                assert "num_ranks" in parse_qs(urlsplit(path).query)
            elif method == "DELETE":
                self.spaces.pop(name, None)
            return (200 if name in self.spaces or method == "DELETE" else 404), b'{"num_ranks": 2}', ""
        space = self.spaces.get(name)
        if space is None:
            return 404, b"", ""
        if parts[2] == "latest":
            return 200, json.dumps(sorted({step for _, step in space}, reverse=True)).encode(), ""
        key = (int(parts[2]), int(parts[3]))
        if method == "POST":
            space[key] = (body, meta)
            return 200, b"", ""
        return (200, *space[key]) if key in space else (404, b"", "")


@contextmanager
def running():
    """A daemon on a port of its own."""
    daemon = Daemon()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            code, content, meta = daemon.answer(
                self.command, self.path, body, self.headers.get("Shard-Meta", "")
            )
            self.send_response(code)
            self.send_header("Content-Length", str(len(content)))
            if meta:
                self.send_header("Shard-Meta", meta)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = handle_any

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    daemon.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield daemon
    finally:
        server.shutdown()
        server.server_close()
