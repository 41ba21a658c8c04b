"""What users say of pictures in requests: where these come from, and how many there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cadence.config.args import EngineArgs
from cadence.config.media_intake import MediaIntake, resolve_intake
from cadence.config.peer_env import applied
from cadence.core.errors import ConfigError
from cadence.core.inputs.media import AUDIO, IMAGE, VIDEO
from cadence.media.fetch.reader import open_reader
from cadence.media.limits import DEFAULT_LIMITS


def intake(**options: Any) -> MediaIntake:
    return resolve_intake(EngineArgs.from_options(**options))


def test_as_it_is_made_nothing_is_fetched_and_no_file_is_read() -> None:
    assert intake() == MediaIntake()
    reader = open_reader(intake())
    assert reader.limits == DEFAULT_LIMITS and reader.urls.access.local_root is None and not reader.urls.access.domains


def test_what_is_said_holds(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    found = intake(
        allowed_local_media_path=str(tmp_path / "link"),
        allowed_media_domains=["Pictures.Test.", "bücher.test"],
        limit_mm_per_prompt={"image": 3, "video": {"count": 0, "num_frames": 8}},
        media_io_kwargs={"video": {"num_frames": 5}},
    )
    reader = open_reader(found)
    access = reader.urls.access
    assert access.local_root == tmp_path.resolve()
    assert access.domains == {"pictures.test", "xn--bcher-kva.test"} and access.max_redirects == 3
    as_made = DEFAULT_LIMITS.per_prompt[AUDIO]
    assert dict(reader.limits.per_prompt) == {IMAGE: 3, VIDEO: 0, AUDIO: as_made} and reader.sampling.num_frames == 5


def test_variables_of_vllm_hold_where_no_flag_is_given() -> None:
    found = {
        "VLLM_IMAGE_FETCH_TIMEOUT": "7", "VLLM_VIDEO_FETCH_TIMEOUT": "8", "VLLM_AUDIO_FETCH_TIMEOUT": "9",
        "VLLM_MAX_IMAGE_PIXELS": "1000",
        "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",
    }  # fmt: skip
    reader = open_reader(resolve_intake(applied(EngineArgs(), found)))
    access = reader.urls.access
    assert (access.seconds[IMAGE], access.seconds[VIDEO], access.seconds[AUDIO]) == (7, 8, 9)
    assert (reader.limits.image_pixels, access.max_redirects) == (1000, 0)
    given = EngineArgs(image_fetch_timeout=1, max_image_pixels=5, media_url_allow_redirects=True)
    reader = open_reader(resolve_intake(applied(given, found)))
    assert (reader.urls.access.seconds[IMAGE], reader.limits.image_pixels) == (1, 5)
    assert reader.urls.access.max_redirects == 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("allowed_local_media_path", "/no/such/folder"), ("allowed_media_domains", ["http://pictures.test"]),
        ("allowed_media_domains", ["*.test"]), ("allowed_media_domains", [""]),
        ("limit_mm_per_prompt", {"pictures": 3}), ("limit_mm_per_prompt", {"image": -1}),
        ("limit_mm_per_prompt", {"image": "many"}),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        intake(**{name: value})
