"""A loopback HTTP server whose answers a test writes down."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Answer:
    """One response; `pause` seconds before it starts, `drip` seconds between its bytes."""

    body: object = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    pause: float = 0.0
    drip: float = 0.0

    @property
    def data(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


@dataclass(frozen=True)
class Request:
    path: str
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass
class Server:
    """Where it listens, and what it was asked."""

    url: str
    requests: list[Request] = field(default_factory=list)


@contextmanager
def serve(answer: Callable[[Request], Answer]) -> Iterator[Server]:
    """Answer each GET and POST with what the function returns for it."""

    class Http(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            request = Request(self.path, dict(self.headers), body)
            server.requests.append(request)
            self._send(answer(request))

        do_POST = do_GET

        def _send(self, answer: Answer) -> None:
            time.sleep(answer.pause)
            try:
                self.send_response(answer.status)
                for name, value in {"Content-Length": str(len(answer.data)), **answer.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                for part in [answer.data[i : i + 1] for i in range(len(answer.data))] if answer.drip else [answer.data]:
                    self.wfile.write(part)
                    self.wfile.flush()
                    time.sleep(answer.drip)
            except OSError:
                self.close_connection = True  # the client went away

        def log_message(self, *words: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Http)
    http.daemon_threads = True
    http.block_on_close = False
    server = Server(f"http://127.0.0.1:{http.server_address[1]}")
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
