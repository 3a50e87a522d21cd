"""A container's standard streams over one connection: stdin fed, both outputs taken apart and bounded."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Any, Self

_OUTPUT_BYTES = 16 << 20


class Tail:
    """The last bytes of a stream, up to a bound: a program's answer and its last words stand at the end."""

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._dropped = 0

    def add(self, piece: bytes) -> None:
        """Take the next bytes."""
        self._pieces.append(piece)
        self._size += len(piece)
        while self._size - len(self._pieces[0]) >= _OUTPUT_BYTES:
            self._size -= len(self._pieces[0])
            self._dropped += len(self._pieces.popleft())

    def text(self) -> str:
        """Return what was kept, and say how much was not."""
        note = f"[{self._dropped} bytes before this were dropped]\n" if self._dropped else ""
        return note + b"".join(self._pieces).decode("utf-8", "replace")


class AttachedStreams:
    """A container's standard streams over one hijacked connection.

    Format of what comes: 8 bytes (stream, three zeros, length in big-endian order), then that many bytes.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        # A SocketIO over plain transports, the socket itself over TLS.
        self._socket = getattr(stream, "_sock", stream)
        self._pending = bytearray()
        self.stdout = Tail()
        self.stderr = Tail()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.hang_up()
        # The HTTP response owns the stream, where the SDK could hang it on.
        getattr(self._stream, "_response", self._stream).close()
        self._socket.close()

    def hang_up(self) -> None:
        """Take and give nothing any more."""
        self._shut(socket.SHUT_RDWR)

    def talk(self, stdin: bytes, deadline: float) -> bool:
        """Feed the program and take its output until it closes it; False at the deadline."""
        self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
        if stdin:
            # A thread: a program may write before it has read everything, and neither may wait for the other.
            threading.Thread(target=self._feed, args=(stdin,), daemon=True).start()
        while (left := deadline - time.monotonic()) > 0:
            self._socket.settimeout(left)
            try:
                piece = self._socket.recv(1 << 16)
            except TimeoutError:
                return False
            if not piece:
                return True
            self._pending += piece
            self._sort()
        return False

    def _feed(self, stdin: bytes) -> None:
        with suppress(OSError):  # the program ended, or does not want any more
            self._socket.sendall(stdin)
        self._shut(socket.SHUT_WR)

    def _shut(self, how: int) -> None:
        with suppress(OSError):
            # Of the plain class: the TLS one would give up reading when it is told to end writing.
            socket.socket.shutdown(self._socket, how)

    def _sort(self) -> None:
        while len(self._pending) >= 8:
            kind, length = struct.unpack(">BxxxL", self._pending[:8])
            if len(self._pending) < 8 + length:
                return
            (self.stderr if kind == 2 else self.stdout).add(bytes(self._pending[8 : 8 + length]))
            del self._pending[: 8 + length]
