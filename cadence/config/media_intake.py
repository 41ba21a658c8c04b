"""How many pictures and videos requests may have, where these may come from, and how long that may take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cadence.core.errors import ConfigError
from cadence.core.inputs.media import AUDIO, IMAGE, VIDEO

if TYPE_CHECKING:
    from cadence.config.args import EngineArgs

KINDS = (IMAGE, VIDEO, AUDIO)
_OTHERS = ("vision_chunk",)  # vLLM's: no family here has such
SECONDS = {IMAGE: 5, VIDEO: 30, AUDIO: 10}  # for a file to be fetched, where nothing else is said


@dataclass(frozen=True, slots=True)
class MediaIntake:
    local_root: Path | None = None  # files of this machine that lie below it may be named; None = none may
    domains: frozenset[str] = frozenset()  # hosts that are asked for files, lower case; "*" = all that are public
    per_prompt: Mapping[str, int] = field(default_factory=dict)  # most of a kind; those that are not named: the default
    seconds: Mapping[str, float] = field(default_factory=lambda: dict(SECONDS))  # by kind, for a file to be fetched
    redirects: bool = True
    max_pixels: int = 0  # of one picture; 0 = the default
    io_kwargs: Mapping[str, Any] = field(default_factory=dict)  # how files are read: `media_io_kwargs`
    named_bytes: int = 2**32  # kept of media that requests may name again
    processor: Mapping[str, Any] = field(default_factory=dict)  # over processors' files: `mm_processor_kwargs`


NO_INTAKE = MediaIntake()


def resolve_intake(args: EngineArgs) -> MediaIntake:
    given = {IMAGE: args.image_fetch_timeout, VIDEO: args.video_fetch_timeout, AUDIO: args.audio_fetch_timeout}
    return MediaIntake(
        local_root=_root(args.allowed_local_media_path),
        domains=frozenset(_domain(name) for name in args.allowed_media_domains or ()),
        per_prompt=_limits(args.limit_mm_per_prompt),
        seconds={kind: float(given.get(kind) or usual) for kind, usual in SECONDS.items()},
        redirects=args.media_url_allow_redirects is not False,
        max_pixels=args.max_image_pixels or 0,
        io_kwargs=args.media_io_kwargs,
        named_bytes=int(args.mm_processor_cache_gb * 2**30),
        processor=args.mm_processor_kwargs,
    )


def _root(path: str) -> Path | None:
    if not path:
        return None
    root = Path(path).expanduser()
    if not root.is_dir():
        raise ConfigError(f"allowed_local_media_path={path} is no folder", "allowed_local_media_path")
    return root.resolve()


def _domain(name: str) -> str:
    """A host, as it is compared."""
    host = name.strip().rstrip(".").lower()
    try:
        plain = host if host == "*" or ":" in host else host.encode("idna").decode()
    except UnicodeError:
        plain = ""
    if not plain or any(mark in host for mark in "/@ ") or ("*" in host and host != "*"):
        message = f"allowed_media_domains: {name!r} is no name of a host, such as images.example.com; * = all hosts"
        raise ConfigError(message, "allowed_media_domains")
    return plain


def _limits(given: Mapping[str, Any]) -> dict[str, int]:
    """A number for each kind, or vLLM's {"count": n, …}, of which the other keys say what to expect of sizes."""
    name = "limit_mm_per_prompt"
    limits: dict[str, int] = {}
    for kind, limit in given.items():
        count = limit.get("count", 999) if isinstance(limit, Mapping) else limit
        if kind not in (*KINDS, *_OTHERS):
            raise ConfigError(f"{name}: {kind!r} is not one of {', '.join(KINDS)}", name)
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise ConfigError(f"{name}.{kind} must be a number of at least 0, not {count!r}", name)
        limits[kind] = count
    return limits
