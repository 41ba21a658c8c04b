"""Files that clients send in forms: written to a temporary file as they come, bounded in size and in number."""

from __future__ import annotations

from dataclasses import dataclass, field

from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.types import Receive

from cadence.entrypoints.server.http.body_budget import BodyShare, chunks_of
from cadence.entrypoints.server.http.errors import ApiError

UPLOAD = "cadence.upload"  # in the ASGI scope: the `Upload` of this HTTP request
UPLOAD_PATHS = frozenset({"/v1/audio/transcriptions", "/v1/audio/translations"})
UPLOADS_AT_ONCE = 16  # of the largest size, on disk; further ones are not read on until others are gone
FILE = "file"  # the field that holds it

_MAX_FIELDS = 128
_MAX_FIELD_BYTES = 64 * 2**10
_CHARSETS = frozenset({"utf-8", "utf8", "us-ascii", "ascii", "iso-8859-1", "latin-1"})  # others may take quadratic time
_FORM_BYTES = 2**20  # of a body around its file


@dataclass(slots=True)
class Upload:
    """The fields of a form, in the order of their coming, and its file."""

    fields: list[tuple[str, str]] = field(default_factory=list)
    file: UploadFile | None = None

    def read(self) -> bytes:
        """All of the file. It waits for a disk: not for the event loop."""
        assert self.file is not None
        self.file.file.seek(0)
        return self.file.file.read()

    def close(self) -> None:
        """Removes the file. May be called twice."""
        if self.file is not None:
            self.file.file.close()


async def read_upload(headers: Headers, receive: Receive, share: BodyShare, max_bytes: int) -> Upload:
    """`max_bytes`: of the file."""
    _check_form(headers)
    message = f"The file is larger than the limit of {max_bytes} bytes."
    too_large = ApiError(413, message, param=FILE, headers={"Connection": "close"})
    stream = chunks_of(headers, receive, share, max_bytes + _FORM_BYTES, too_large)
    parser = MultiPartParser(headers, stream, max_files=1, max_fields=_MAX_FIELDS, max_part_size=_MAX_FIELD_BYTES)
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise ApiError(400, f"The form cannot be read: {error.message}", headers={"Connection": "close"}) from None
    share.complete()
    upload = Upload()
    for name, value in form.multi_items():
        if isinstance(value, str):
            upload.fields.append((name, value))
        elif name == FILE:
            upload.file = value
        else:
            value.file.close()
            upload.fields.append((name, ""))
    return upload


def _check_form(headers: Headers) -> None:
    kind, options = parse_options_header(headers.get("content-type", ""))
    media_type, charset = kind.decode("latin-1"), options.get(b"charset", b"utf-8").decode("latin-1").lower()
    if media_type != "multipart/form-data":
        raise ApiError(415, f"Content-Type must be multipart/form-data, not {media_type or 'missing'}.")
    if charset not in _CHARSETS:
        raise ApiError(415, f"The charset of a form must be utf-8, not {charset[:40] or 'empty'}.")
