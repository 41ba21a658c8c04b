"""HTTP/1.1 answers and server-sent events, decoded from bytes as they arrive. No sockets here."""

from __future__ import annotations

from collections.abc import Iterator

MAX_HEAD = 1 << 16  # bytes of status line and headers


class WireError(Exception):
    """The peer does not speak HTTP/1.1 as we know it, or left in mid-answer."""


class ResponseDecoder:
    """One answer. `feed` returns the bytes of its body; `done` turns true with the last of them."""

    def __init__(self) -> None:
        self.status = 0  # 0 until the head is complete
        self.headers: dict[str, str] = {}  # names in lower case
        self.done = False
        self._buffer = b""
        self._chunked = False
        self._left = -1  # body bytes to come (of this chunk); -1 = until the peer closes
        self._trailer = False  # after the last chunk

    @property
    def keep_alive(self) -> bool:
        return self.done and self._ended_by_itself and self.headers.get("connection", "").lower() != "close"

    @property
    def _ended_by_itself(self) -> bool:
        return self._chunked or self._left >= 0

    def feed(self, data: bytes) -> bytes:
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        if not self.status:
            data = self._read_head(data)
            if not self.status:
                return b""
        return self._read_chunks(data) if self._chunked else self._read_plain(data)

    def close(self) -> None:
        """The peer closed the connection: the end of an answer of unknown length, a mistake for any other."""
        if self.status and not self._ended_by_itself:
            self.done = True
        if not self.done:
            raise WireError("the server closed the connection before the end of its answer")

    def _read_head(self, data: bytes) -> bytes:
        end = data.find(b"\r\n\r\n")
        if end < 0:
            if len(data) > MAX_HEAD:
                raise WireError("the headers of the answer are too long")
            self._buffer = data
            return b""
        lines = data[:end].decode("latin-1").split("\r\n")
        words = lines[0].split(" ", 2)
        if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdecimal():
            raise WireError(f"not an HTTP/1.1 answer: {lines[0][:80]!r}")
        rest = data[end + 4 :]
        if words[1].startswith("1"):  # 100 Continue and its like announce the real answer
            return self._read_head(rest)
        self.headers = {name.strip().lower(): value.strip() for name, _, value in (h.partition(":") for h in lines[1:])}
        self._open_body(int(words[1]))
        return rest

    def _open_body(self, status: int) -> None:
        length = self.headers.get("content-length", "")
        self._chunked = "chunked" in self.headers.get("transfer-encoding", "").lower()
        if self._chunked or status in (204, 304):
            self._left = 0
        elif length.isdecimal():
            self._left = int(length)
        self.done = self._left == 0 and not self._chunked
        self.status = status

    def _read_plain(self, data: bytes) -> bytes:
        if self._left < 0:
            return data
        body = data[: self._left]
        self._left -= len(body)
        self.done = self._left == 0
        return body

    def _read_chunks(self, data: bytes) -> bytes:
        pieces: list[bytes] = []
        at = 0
        while not self.done:
            if self._left:  # what is left of a chunk, with the line end after it
                if len(data) - at < self._left:
                    break
                pieces.append(data[at : at + self._left - 2])
                at += self._left
                self._left = 0
                continue
            end = data.find(b"\r\n", at)
            if end < 0:
                break
            line = data[at:end]
            at = end + 2
            if self._trailer:
                self.done = not line
            else:
                self._left = _chunk_size(line)
                self._trailer = self._left == 0
        self._buffer = data[at:]
        return b"".join(pieces)


def _chunk_size(line: bytes) -> int:
    """Bytes of the chunk this line announces, with its line end; 0 for the last chunk."""
    try:
        size = int(line.partition(b";")[0], 16)
    except ValueError:
        size = -1
    if size < 0:
        raise WireError(f"not the size of a chunk: {line[:40]!r}")
    return size + 2 if size else 0


class EventDecoder:
    """Server-sent events. `feed` yields the data of each event that is complete."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        data = self._buffer + data
        if b"\r" in data:
            # A line end cut in two stays in the buffer until its other half arrives.
            cut = len(data) - data.endswith(b"\r")
            data = data[:cut].replace(b"\r\n", b"\n") + data[cut:]
        *events, self._buffer = data.split(b"\n\n")
        for event in events:
            if event.startswith(b"data:") and b"\n" not in event:  # nearly all
                yield event[5:].lstrip(b" ")
            elif lines := [line[5:].lstrip(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]:
                yield b"\n".join(lines)
