"""Files of this machine, below the one folder that the server's owner names."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from urllib.parse import unquote, urlsplit

from cadence.core.errors import InvalidRequestError
from cadence.media.limits import MediaLimits
from cadence.media.parts import MediaPart

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe without a writer does not block


def read_local(part: MediaPart, root: Path | None, limits: MediaLimits) -> bytes:
    where = part.where
    if root is None:
        message = f"{where}: this server reads no files of its machine; --allowed-local-media-path names a folder"
        raise InvalidRequestError(message, where)
    path = _path(part.url, where)
    try:
        real = path.resolve(strict=True)
        _check_below(real, root, where)
        descriptor = os.open(real, _FLAGS)
    except (OSError, RuntimeError, ValueError):  # a loop of links is a RuntimeError
        raise _not_there(where) from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _not_there(where)
        _check_below(_opened_path(descriptor, real), root, where)  # another may have moved it meanwhile
        limits.check_bytes(part.kind, os.fstat(descriptor).st_size, where)
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(limits.bytes_of(part.kind) + 1)
    finally:
        os.close(descriptor)


def _path(url: str, where: str) -> Path:
    try:
        found = urlsplit(url)
        host = found.hostname or ""
    except ValueError:
        raise InvalidRequestError(f"{where} is no URL", where) from None
    path = unquote(found.path)
    if host not in ("", "localhost") or not path.startswith("/") or "\0" in path or found.query or found.fragment:
        raise InvalidRequestError(f"{where} must look like file:///folder/picture.png", where)
    return Path(path)


def _check_below(real: Path, root: Path, where: str) -> None:
    if not real.is_relative_to(root.resolve()):
        raise _not_there(where)


def _opened_path(descriptor: int, real: Path) -> Path:
    link = f"/proc/self/fd/{descriptor}"
    return Path(os.path.realpath(link)) if os.path.exists(link) else real.resolve()


def _not_there(where: str) -> InvalidRequestError:
    """The same for all: what lies elsewhere on this machine is not for clients to know."""
    return InvalidRequestError(f"{where}: there is no such file below the folder of --allowed-local-media-path", where)
