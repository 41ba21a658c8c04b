"""The files of a batch: requests in, answers out, both JSONL in OpenAI's format.

The output grows by one whole line at a time, so that a run that was cut short goes on where it stopped; when every line
is there it is put into the order of the input, by one rename.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from cadence.core.errors import ConfigError

BEGINNING = b'{"id": "batch_req_'  # of every line we write


@dataclass(frozen=True, slots=True)
class LinePlace:
    custom_id: str
    offset: int  # bytes


class RequestFile:
    """Read once to check it, then line by line as requests are due: only places are kept in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}", "input_file") from None
        self.places = list(self._check())

    def read(self, place: LinePlace) -> dict[str, Any]:
        self._file.seek(place.offset)
        return as_request(json.loads(self._file.readline()), place.custom_id)

    def close(self) -> None:
        self._file.close()

    def _check(self) -> Iterator[LinePlace]:
        """What keeps a line from having an answer of its own is a mistake of the whole file."""
        first_seen: dict[str, int] = {}
        offset = 0
        for number, line in enumerate(self._file, start=1):
            if line.strip():
                custom_id = self._custom_id(line, number)
                if custom_id in first_seen:
                    known = first_seen[custom_id]
                    raise self._mistake(number, f"custom_id {custom_id!r} is that of line {known} too")
                first_seen[custom_id] = number
                yield LinePlace(custom_id, offset)
            offset += len(line)

    def _custom_id(self, line: bytes, number: int) -> str:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            raise self._mistake(number, "not JSON") from None
        if not isinstance(entry, dict):
            raise self._mistake(number, "not a JSON object")
        custom_id = entry.get("custom_id", f"line-{number}" if is_plain(entry) else None)
        if not isinstance(custom_id, str) or not custom_id:
            raise self._mistake(number, "custom_id is missing or not a text")
        return custom_id

    def _mistake(self, number: int, what: str) -> ConfigError:
        return ConfigError(f"{self.path}, line {number}: {what}", "input_file")


def is_plain(entry: dict[str, Any]) -> bool:
    """Whether a line is the body of a request and nothing else."""
    return not entry.keys() & {"url", "body", "method"} and bool(entry.keys() & {"prompt", "messages"})


def as_request(entry: dict[str, Any], custom_id: str) -> dict[str, Any]:
    """A line as OpenAI shapes it."""
    if not is_plain(entry):
        return entry
    url = "/v1/chat/completions" if "messages" in entry else "/v1/completions"
    body = {name: value for name, value in entry.items() if name != "custom_id"}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


class ResultFile:
    """Answers by custom_id. Held by one process at a time."""

    def __init__(self, path: Path, overwrite: bool = False) -> None:
        self.path = path
        self.offsets: dict[str, int] = {}  # where each answer lies
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._open()
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror}", "output_file") from None
        self._end = 0
        try:
            if overwrite:
                self._file.truncate(0)
            self._read_known()
        except ConfigError:
            self.close()
            raise

    def append(self, record: dict[str, Any]) -> None:
        line = encode(record)
        try:
            complete = self._file.write(line) == len(line)
            problem = "the disk is full"
        except OSError as error:
            complete, problem = False, error.strerror or str(error)
        if not complete:
            raise ConfigError(f"cannot write {self.path}: {problem}", "output_file")
        self.offsets[record["custom_id"]] = self._end
        self._end += len(line)

    def drop_failed(self) -> int:
        """Forgets answers that are errors, so that they are asked again. Returns how many."""
        failed = [name for name, offset in self.offsets.items() if is_failure(json.loads(self._line(offset)))]
        if failed:
            self._rewrite([name for name in self.offsets if name not in set(failed)])
        return len(failed)

    def settle(self, order: Sequence[str]) -> None:
        """Puts the answers into this order, after those it does not name, and onto the disk."""
        named = set(order)
        before = [name for name in self.offsets if name not in named]
        wanted = [*before, *(name for name in order if name in self.offsets)]
        if wanted != sorted(self.offsets, key=self.offsets.__getitem__):
            self._rewrite(wanted)
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def _open(self) -> BinaryIO:
        """Unbuffered and appending: a line is one write."""
        file = self.path.open("ab+", buffering=0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise ConfigError(f"another process writes {self.path}", "output_file") from None
        return file

    def _read_known(self) -> None:
        line = b"\n"
        with self.path.open("rb") as known:
            for number, line in enumerate(known, start=1):
                if not line.endswith(b"\n") and (line.startswith(BEGINNING) or BEGINNING.startswith(line)):
                    break  # the last run ended in the middle of this one
                if line.strip():
                    self.offsets[self._known_id(line, number)] = self._end
                self._end += len(line)
            else:
                if not line.endswith(b"\n"):
                    self._end += self._file.write(b"\n")
        self._file.truncate(self._end)

    def _known_id(self, line: bytes, number: int) -> str:
        try:
            return str(json.loads(line)["custom_id"])
        except (ValueError, LookupError, TypeError):
            message = f"{self.path} exists, and line {number} is no answer of a batch; --overwrite replaces the file"
            raise ConfigError(message, "output_file") from None

    def _line(self, offset: int) -> bytes:
        with self.path.open("rb") as file:
            file.seek(offset)
            return file.readline()

    def _rewrite(self, names: Sequence[str]) -> None:
        """Only these answers, in this order. The file is the old one or the new one, never half of each."""
        fresh = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        offsets: dict[str, int] = {}
        end = 0
        try:
            with self.path.open("rb") as old, fresh.open("wb") as new:
                fcntl.flock(new, fcntl.LOCK_EX)
                for name in names:
                    old.seek(self.offsets[name])
                    offsets[name] = end
                    end += new.write(old.readline())
                new.flush()
                os.fsync(new.fileno())
                os.replace(fresh, self.path)
        finally:
            fresh.unlink(missing_ok=True)
        self._file.close()
        self._file = self._open()
        self.offsets, self._end = offsets, end


def encode(record: dict[str, Any]) -> bytes:
    return json.dumps(record, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def is_failure(record: dict[str, Any]) -> bool:
    return record.get("error") is not None or (record.get("response") or {}).get("status_code") != 200
