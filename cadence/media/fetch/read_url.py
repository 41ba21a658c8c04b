"""The bytes that a URL leads to."""

from __future__ import annotations

from dataclasses import dataclass, field

from cadence.core.errors import InvalidRequestError
from cadence.core.shown import shown
from cadence.media.fetch.addresses import AddressPolicy, Resolve, is_public, resolved
from cadence.media.fetch.data_url import DATA, read_data_url
from cadence.media.fetch.http import HttpFetch
from cadence.media.fetch.local_file import read_local
from cadence.media.limits import DEFAULT_LIMITS, NO_ACCESS, MediaAccess, MediaLimits
from cadence.media.parts import MediaPart

MAX_URL = 8192  # characters, of one that is no data URL


@dataclass(frozen=True, slots=True)
class UrlReader:
    limits: MediaLimits = DEFAULT_LIMITS
    access: MediaAccess = NO_ACCESS
    allows: AddressPolicy = field(default=is_public)
    resolve: Resolve = field(default=resolved)

    def read(self, part: MediaPart) -> list[bytes]:
        """One file; of a video that comes as pictures, each. Blocks: it may wait for a network."""
        scheme = part.url[:8].partition(":")[0].lower()
        if scheme == DATA:
            return read_data_url(part, self.limits)
        if len(part.url) > MAX_URL:
            raise InvalidRequestError(f"{part.where}: a URL must have at most {MAX_URL} characters", part.where)
        if scheme in ("http", "https"):
            fetch = HttpFetch(self.access, self.limits.bytes_of(part.kind), self.allows, self.resolve)
            data = fetch.read(part.url, self.access.seconds[part.kind], part.where)
        elif scheme == "file":
            data = read_local(part, self.access.local_root, self.limits)
        else:
            message = f"{part.where} must be a data:, http:, https: or file: URL; it begins with {shown(part.url[:24])}"
            raise InvalidRequestError(message, part.where)
        self.limits.check_bytes(part.kind, len(data), part.where)
        return [data]


def waits_for_network(part: MediaPart) -> bool:
    return part.url[:5].lower() in ("http:", "https")
