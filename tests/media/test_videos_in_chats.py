"""A video in a chat with a model that takes videos: its frames are those that were asked for."""

from __future__ import annotations

from typing import Any

import pytest

from cadence import LLM, SamplingParams
from cadence.core.errors import InvalidRequestError
from cadence.media.as_media import as_video
from cadence.media.video import Sampling
from tests.helpers.tiny_qwen_vl import make_qwen_vl
from tests.media.pictures import data_url, picture, video

pytestmark = [pytest.mark.engine]

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
TEXT = {"type": "text", "text": "what is the quick"}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    directory = make_qwen_vl("2.5", tmp_path_factory.mktemp("qwen"))
    options: dict[str, Any] = {"dtype": "float32", "max_num_seqs": 4, "num_gpu_blocks_override": 200}
    return LLM(
        str(directory), media_io_kwargs={"video": {"num_frames": 4}}, limit_mm_per_prompt={"video": 1}, **options
    )


def answer(llm: LLM, *content: dict[str, Any]) -> tuple[int, list[int]]:
    (output,) = llm.chat([{"role": "user", "content": [*content, TEXT]}], GREEDY, use_tqdm=False)
    assert output.prompt_token_ids is not None
    return len(output.prompt_token_ids), list(output.outputs[0].token_ids)


def test_files_and_their_frames_say_the_same(llm: LLM) -> None:
    file = video("mp4", "mpeg4", 20, 64, 64)
    four = as_video(file, "x", sampling=Sampling(num_frames=4))
    found = answer(llm, {"type": "video_url", "video_url": {"url": data_url(file, "video/mp4")}})
    assert found == answer(llm, {"type": "video", "video": file}) == answer(llm, {"type": "video", "video": four})
    two = as_video(file, "x", sampling=Sampling(num_frames=2))
    fewer = answer(llm, {"type": "video", "video": two})
    assert fewer[0] < found[0]
    with_picture = answer(llm, {"type": "image", "image": picture()}, {"type": "video", "video": two})
    assert with_picture[0] > fewer[0]


def test_how_many_there_may_be(llm: LLM) -> None:
    part = {"type": "video", "video": video("mp4", "mpeg4", 20, 64, 64)}
    with pytest.raises(
        InvalidRequestError, match=r"messages\[0\].content\[1\].video: a prompt may have at most 1 video"
    ):
        answer(llm, part, part)
