"""What the text process is asked and what it answers: msgpack. No pickle."""

from __future__ import annotations

from array import array

import msgspec

ALL = (None, None)

Kept = tuple[int | None, int | None]  # start and stop of a slice of token ids


class LoadTokenizer(msgspec.Struct, frozen=True, tag=True):
    """The first message: which tokenizer, and how much memory a job may take beyond it."""

    name: str
    directory: str
    gguf: str  # "" = none
    escape_control_tokens: bool
    memory_bytes: int
    mode: str = "auto"  # tokenizer_mode


class Encode(msgspec.Struct, frozen=True, tag=True):
    text: str
    add_special_tokens: bool
    kept: Kept
    max_tokens: int  # of the answer
    seconds: float


class Decode(msgspec.Struct, frozen=True, tag=True):
    ids: bytes  # packed int32, as everywhere below
    skip_special_tokens: bool
    max_bytes: int  # of the answer
    seconds: float


class RenderChat(msgspec.Struct, frozen=True, tag=True):
    """Renders and tokenises. `chat` is JSON, since messages may hold numbers that msgpack cannot."""

    chat: bytes
    template: str
    add_special_tokens: bool
    kept: Kept
    max_tokens: int
    field: str  # that holds the messages, for errors
    context: int  # text that must have this many tokens or more is refused; 0 = none
    seconds: float
    check_only: bool = False  # the text is rendered and held against `context`, and neither tokenised nor given back


class Ready(msgspec.Struct, frozen=True, tag=True):
    pass


class Encoded(msgspec.Struct, frozen=True, tag=True):
    ids: bytes
    total: int  # tokens before the cut
    text: str = ""  # of a chat
    retire: bool = False  # the process has grown too large to go on


class Decoded(msgspec.Struct, frozen=True, tag=True):
    text: str
    retire: bool = False


class Failed(msgspec.Struct, frozen=True, tag=True):
    message: str
    field: str
    out_of_memory: bool = False


Job = Encode | Decode | RenderChat
Answer = Encoded | Decoded | Failed
ToProcess = LoadTokenizer | Encode | Decode | RenderChat
FromProcess = Ready | Encoded | Decoded | Failed

to_process = msgspec.msgpack.Decoder(ToProcess)
from_process = msgspec.msgpack.Decoder(FromProcess)


def packed(ids: list[int]) -> bytes:
    return array("i", ids).tobytes()


def unpacked(data: bytes) -> list[int]:
    ids = array("i")
    ids.frombytes(data)
    return ids.tolist()
