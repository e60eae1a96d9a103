"""Serves a list of files on loopback, and nothing else.

What is not in the list is not there: no path of a request ever reaches the file system. Requests
that name another host than loopback are refused, because a page elsewhere could have its own name
resolve to loopback and read the trace (DNS rebinding).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

LOOPBACK = "127.0.0.1"
_HOSTS = (LOOPBACK, "localhost")
_TYPES = {
    ".css": "text/css",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".wasm": "application/wasm",
    ".woff2": "font/woff2",
}
_PART_BYTES = 1 << 20
_UNKNOWN_TYPE = "application/octet-stream"
_POLICY = "; ".join(
    (
        # Perfetto's user interface compiles WebAssembly and draws by inline styles.
        "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:",
        "connect-src 'self' data: blob:",
        "object-src 'none'",
        "base-uri 'self'",
        "form-action 'none'",
        "frame-ancestors 'self'",
    )
)
_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""What a page loads comes from here; nothing of what it shows goes elsewhere."""


class Server(ThreadingHTTPServer):
    """Serves files.

    Args:
        files: By the path of their URL, which begins with a slash.
        port: Of loopback; 0: a free one.

    Raises:
        OSError: The port cannot be had.
    """

    daemon_threads = True

    def __init__(self, files: Mapping[str, Path], port: int = 0) -> None:
        self.files = files
        super().__init__((LOOPBACK, port), _Handler)

    @property
    def url(self) -> str:
        """Address of the server, without a slash at the end."""
        return f"http://{LOOPBACK}:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore browsers that go away before they have read everything."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        name = _host_name(self.headers.get("Host", ""))
        path = self.server.files.get(unquote(urlsplit(self.path).path))
        if name not in _HOSTS:
            self.send_error(HTTPStatus.FORBIDDEN, "this is for the machine itself")
        elif path is None:
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            self._send(path, with_body=with_body)

    def _send(self, path: Path, *, with_body: bool) -> None:
        try:
            file = path.open("rb")
        except OSError:
            self.send_error(HTTPStatus.NOT_FOUND, "it is gone")
            return
        with file:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", _TYPES.get(path.suffix, _UNKNOWN_TYPE))
            left = os.fstat(file.fileno()).st_size  # of this file; another may have its name now
            self.send_header("Content-Length", str(left))
            self.end_headers()
            while with_body and left and (part := file.read(min(left, _PART_BYTES))):
                self.wfile.write(part)
                left -= len(part)
            if with_body and left:  # it was cut: a browser must not wait for the rest
                self.close_connection = True

    def end_headers(self) -> None:
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: a page asks for dozens of files."""


def _host_name(header: str) -> str | None:
    """Return the host that a request is meant for; None: none at all."""
    try:
        return urlsplit(f"//{header}").hostname
    except ValueError:
        return None
