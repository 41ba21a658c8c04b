"""Files of the server's machine: those below one folder, whatever a URL says of the way there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cadence.core.errors import InvalidRequestError
from cadence.core.inputs.media import IMAGE
from cadence.media.fetch.read_url import UrlReader
from cadence.media.limits import MediaAccess, MediaLimits
from cadence.media.parts import MediaPart
from tests.media.pictures import picture


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder that may be read, beside one that may not."""
    folder, secret = tmp_path / "open", tmp_path / "open-not"
    (folder / "inner").mkdir(parents=True)
    secret.mkdir()
    for place in (folder / "a.png", folder / "inner" / "ä b.png", secret / "secret.png"):
        place.write_bytes(picture())
    (folder / "link.png").symlink_to(folder / "inner" / "ä b.png")
    (folder / "out.png").symlink_to(secret / "secret.png")
    (folder / "outside").symlink_to(secret)
    (folder / "loop").symlink_to(folder / "loop")
    os.mkfifo(folder / "pipe.png")
    (folder / "large.png").write_bytes(bytes(5000))
    return folder


def read(root: Path, url: str, access: MediaAccess | None = None) -> bytes:
    limits = MediaLimits(image_bytes=4000)
    (data,) = UrlReader(limits, access or MediaAccess(local_root=root)).read(MediaPart(IMAGE, "part", url))
    return data


@pytest.mark.parametrize("path", ["a.png", "inner/%C3%A4%20b.png", "link.png", "inner/../a.png", "./a.png"])
def test_files_below_the_folder(root: Path, path: str) -> None:
    assert read(root, f"file://{root}/{path}") == picture()
    assert read(root, f"FILE://localhost{root}/{path}") == picture()


@pytest.mark.parametrize(
    "path",
    [
        "../open-not/secret.png", "%2e%2e/open-not/secret.png", "out.png", "outside/secret.png", "missing.png", "",
        "inner", "loop", "loop/a.png", "pipe.png", "a.png/b", "inner/../../open-not/secret.png", "a" * 300,
    ],
)  # fmt: skip
def test_others_are_not_there(root: Path, path: str) -> None:
    """One error for all of them: it does not tell what lies elsewhere."""
    with pytest.raises(InvalidRequestError, match="part: there is no such file below the folder") as caught:
        read(root, f"file://{root}/{path}")
    assert caught.value.field == "part" and "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd", "file:///proc/self/environ", "file:///dev/zero", "file://host/etc/passwd", "file:a.png",
        "file://", "file:///%00", "file:///a?b", "file:///a#b", "file://[", "file:////etc/passwd",
    ],
)  # fmt: skip
def test_other_urls(root: Path, url: str) -> None:
    with pytest.raises(InvalidRequestError, match="part"):
        read(root, url)


def test_large_files_are_not_read(root: Path) -> None:
    with pytest.raises(InvalidRequestError, match="at most 4000 bytes"):
        read(root, f"file://{root}/large.png")


def test_no_folder_no_files(root: Path) -> None:
    with pytest.raises(InvalidRequestError, match="--allowed-local-media-path"):
        read(root, f"file://{root}/a.png", MediaAccess())
