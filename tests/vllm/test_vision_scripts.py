"""Scripts for vLLM with pictures and videos, in the shape of its examples: one picture and many questions, several
pictures by their URLs, what was sent before, vectors in the place of a prompt. They run as they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cadence.core.errors import InvalidRequestError, ModelNotFoundError
from tests.arch.source import ROOT
from tests.helpers.seeing import noise
from tests.helpers.tiny_models import make_tiny
from tests.helpers.tiny_qwen_vl import make_qwen_vl
from tests.helpers.tiny_vision import make_vision
from tests.media.pictures import video

pytestmark = pytest.mark.warm

ONE = """
import random
from typing import NamedTuple

from vllm import LLM, EngineArgs, SamplingParams
from vllm.assets.image import ImageAsset
from vllm.assets.video import VideoAsset
from vllm.lora.request import LoRARequest
from vllm.multimodal.image import convert_image_mode
from vllm.platforms import current_platform
from vllm.utils.argparse_utils import FlexibleArgumentParser


class ModelRequestData(NamedTuple):
    engine_args: EngineArgs
    prompts: list[str]
    stop_token_ids: list[int] | None = None
    lora_requests: list[LoRARequest] | None = None


def run_llava(questions, modality):
    prompts = [f"USER: <image>\\n{question}\\nASSISTANT:" for question in questions]
    engine_args = EngineArgs(model="llava-hf/tiny", max_model_len=256, limit_mm_per_prompt={modality: 1})
    return ModelRequestData(engine_args=engine_args, prompts=prompts)


def run_qwen2_5_vl(questions, modality):
    mm_limit = {"image": 1, "video": 1} if modality == "image+video" else {modality: 1}
    engine_args = EngineArgs(
        model="Qwen/tiny", max_model_len=256, max_num_seqs=5, limit_mm_per_prompt=mm_limit,
        mm_processor_kwargs={"min_pixels": 16 * 16, "max_pixels": 40 * 40, "fps": 1},
    )
    image, video = (f"<|vision_start|><|{kind}_pad|><|vision_end|>" for kind in ("image", "video"))
    placeholder = {"image": image, "video": video, "image+video": image + video}[modality]
    prompts = [f"<|user|>{placeholder}{question}<|end|>\\n<|assistant|>" for question in questions]
    return ModelRequestData(engine_args=engine_args, prompts=prompts)


model_example_map = {"llava": run_llava, "qwen2_5_vl": run_qwen2_5_vl}


def get_multi_modal_input(args):
    image = convert_image_mode(ImageAsset("cherry_blossom").pil_image, "RGB")
    video = VideoAsset(name="baby_reading", num_frames=args.num_frames)
    assert len(video.pil_images) == args.num_frames and video.metadata["fps"] > 0
    data = {"image": image, "video": video.np_ndarrays, "image+video": {"image": image, "video": video.np_ndarrays}}
    return data[args.modality], ["what is the quick", "the slow river", "to be or not", "one two three"]


def mm_data(data, modality):
    return data if modality == "image+video" else {modality: data}


def mm_uuid(uuid, modality):
    return {"image": uuid, "video": uuid + "v"} if modality == "image+video" else {modality: uuid}


def repeated(args, data, prompts):
    inputs, empty = [], []
    current = data
    for i in range(args.num_prompts):
        if args.image_repeat_prob is not None and random.random() >= args.image_repeat_prob:
            current = current.copy()
            current.putpixel((0, 0), (i // 256 // 256, i // 256, i % 256))
        uuid = mm_uuid(f"uuid_{i}", args.modality)
        prompt = prompts[i % len(prompts)]
        given = mm_data(current, args.modality)
        inputs.append({"prompt": prompt, "multi_modal_data": given, "multi_modal_uuids": uuid})
        nothing = dict.fromkeys(given)
        empty.append({"prompt": prompt, "multi_modal_data": nothing, "multi_modal_uuids": uuid})
    return inputs, empty


def main(args):
    data, questions = get_multi_modal_input(args)
    req_data = model_example_map[args.model_type](questions, args.modality)
    default_limits = {"image": 0, "video": 0, "audio": 0, "vision_chunk": 0}
    req_data.engine_args.limit_mm_per_prompt = default_limits | dict(req_data.engine_args.limit_mm_per_prompt or {})
    engine_args = req_data.engine_args
    engine_args.seed = args.seed
    engine_args.mm_processor_cache_gb = 0 if args.disable_mm_processor_cache else 4
    assert not current_platform.is_rocm()
    llm = LLM.from_engine_args(engine_args)
    sampling_params = SamplingParams(temperature=0.2, max_tokens=8, seed=1, stop_token_ids=req_data.stop_token_ids)
    inputs, empty = repeated(args, data, req_data.prompts)
    outputs = llm.generate(inputs, sampling_params=sampling_params, lora_request=None)
    try:
        again = llm.generate(empty, sampling_params=sampling_params)
    except Exception as e:
        print(f"Failed to verify cache hits with UUIDs. Error: {e}")
        again = outputs if args.disable_mm_processor_cache else []
    for output in outputs:
        print(repr(output.outputs[0].text))
    print(len({tuple(o.outputs[0].token_ids) for o in outputs}) > 1, [o.outputs[0].text for o in outputs] == [
        o.outputs[0].text for o in again])


if __name__ == "__main__":
    parser = FlexibleArgumentParser(description="Demo on using vLLM for offline inference with vision language models")
    parser.add_argument("--model-type", "-m", type=str, default="llava", choices=model_example_map.keys())
    parser.add_argument("--num-prompts", type=int, default=4)
    parser.add_argument("--modality", type=str, default="image", choices=["image", "video", "image+video"])
    parser.add_argument("--num-frames", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--image-repeat-prob", type=float, default=None)
    parser.add_argument("--disable-mm-processor-cache", action="store_true")
    main(parser.parse_args())
"""

SEVERAL = """
from argparse import Namespace
from typing import NamedTuple

from PIL.Image import Image

from vllm import LLM, EngineArgs, SamplingParams
from vllm.multimodal.utils import encode_image_url, fetch_image
from vllm.utils.argparse_utils import FlexibleArgumentParser

QUESTION = "what is the content"


class ModelRequestData(NamedTuple):
    engine_args: EngineArgs
    prompt: str
    image_data: list[Image]


def load_llava(question, image_urls):
    engine_args = EngineArgs(model="llava-hf/tiny", max_num_seqs=16, limit_mm_per_prompt={"image": len(image_urls)})
    prompt = f"USER: {'<image>' * len(image_urls)}\\n{question}\\nASSISTANT:"
    return ModelRequestData(engine_args, prompt, [fetch_image(url) for url in image_urls])


def main(args: Namespace):
    req_data = load_llava(QUESTION, args.urls)
    engine_args = req_data.engine_args
    engine_args.seed = 0
    llm = LLM.from_engine_args(engine_args)
    params = SamplingParams(temperature=0.0, max_tokens=8)
    generated = llm.generate(
        {"prompt": req_data.prompt, "multi_modal_data": {"image": req_data.image_data}}, sampling_params=params
    )
    urls = [encode_image_url(image) for image in req_data.image_data]
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    chat = [{"role": "user", "content": [{"type": "text", "text": QUESTION}, *parts]}]
    told = llm.chat(chat, sampling_params=params)
    swapped = llm.chat([{"role": "user", "content": [chat[0]["content"][0], *parts[::-1]]}], sampling_params=params)
    print(len(generated[0].outputs[0].token_ids), len(told[0].outputs[0].token_ids),
          told[0].outputs[0].token_ids != swapped[0].outputs[0].token_ids)


if __name__ == "__main__":
    parser = FlexibleArgumentParser()
    parser.add_argument("urls", nargs="+")
    main(parser.parse_args())
"""

VECTORS = """
from transformers import AutoModelForCausalLM

from vllm import LLM, SamplingParams
from vllm.inputs import EmbedsPrompt

import sys
import torch

model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
embedding_layer = model.get_input_embeddings()
llm = LLM(model="org/tiny", enable_prompt_embeds=True, dtype="float32", max_model_len=64)
ids = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])
embeds = embedding_layer(ids)  # with its gradient, as the example leaves it
params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
outputs = llm.generate([EmbedsPrompt(prompt_embeds=each) for each in embeds], params)
outputs += llm.generate({"prompt_embeds": embeds[0]}, params)
plain = llm.generate([{"prompt_token_ids": each} for each in ids.tolist()], params)
told = [output.outputs[0].token_ids for output in outputs]
print(told == [output.outputs[0].token_ids for output in [*plain, plain[0]]])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models, and files by the names that the examples have for theirs."""
    folder = tmp_path_factory.mktemp("vision_scripts")
    make_vision("llava", folder / "llava")
    make_qwen_vl("2.5", folder / "qwen")
    make_tiny("llama", folder / "llama")
    assets = folder / "assets" / "vllm_public_assets"
    assets.mkdir(parents=True)
    noise(90, 120, 5).save(assets / "cherry_blossom.jpg")
    noise(40, 30, 6).convert("RGBA").save(folder / "clear.png")
    (folder / "assets" / "sample_demo_1.mp4").write_bytes(video())
    for name, script in (("one", ONE), ("several", SEVERAL), ("vectors", VECTORS)):
        (folder / f"{name}.py").write_text(script)
    return folder


def run(folder: Path, script: str, *words: str) -> str:
    """-> its last line"""
    maps = [f"--model-map={name}={folder / path}" for name, path in
            (("llava-hf/tiny", "llava"), ("Qwen/tiny", "qwen"), ("org/tiny", "llama"))]  # fmt: skip
    variables = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "VLLM_ASSETS_CACHE": str(folder / "assets")}
    command = [sys.executable, "-m", "cadence.vllm", *maps, f"{script}.py", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=folder, env=variables)
    assert done.returncode == 0, done.stderr
    for name in ("limit_mm_per_prompt", "mm_processor_kwargs", "multi_modal_uuids"):
        assert name not in done.stderr, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.engine
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("-m", "llava", "--image-repeat-prob", "0.5", "--num-prompts", "6"), id="llava"),
        pytest.param(("-m", "qwen2_5_vl", "--disable-mm-processor-cache"), id="qwen", marks=pytest.mark.wide),
        pytest.param(("-m", "qwen2_5_vl", "--modality", "video"), id="video", marks=pytest.mark.wide),
        pytest.param(("-m", "qwen2_5_vl", "--modality", "image+video", "--num-prompts", "2"), id="both"),
    ],
)
def test_pictures_and_videos(folder: Path, words: tuple[str, ...]) -> None:
    assert run(folder, "one", *words) == "True True"


@pytest.mark.engine
def test_several_pictures(folder: Path) -> None:
    urls = [f"file://{folder}/assets/vllm_public_assets/cherry_blossom.jpg", f"file://{folder}/clear.png"]
    assert run(folder, "several", *urls) == "8 8 True"


@pytest.mark.engine
def test_vectors_for_a_prompt(folder: Path) -> None:
    assert run(folder, "vectors", str(folder / "llama")) == "True"


def test_files_and_urls_that_a_program_names(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    from cadence.vllm.asset_files import ImageAsset, VideoAsset
    from cadence.vllm.media_tools import (
        convert_image_mode,
        encode_image_url,
        fetch_audio,
        fetch_image,
        rescale_image_size,
    )

    monkeypatch.setenv("VLLM_ASSETS_CACHE", str(folder / "assets"))
    picture = ImageAsset("cherry_blossom").pil_image_ext("jpg")
    assert picture.size == (120, 90) and VideoAsset("baby_reading", 3).np_ndarrays.shape[0] == 3
    with pytest.raises(ModelNotFoundError, match=r"stop_sign\.jpg is not there, and nothing is fetched"):
        _ = ImageAsset("stop_sign").pil_image
    url = encode_image_url(picture)
    np.testing.assert_array_equal(np.asarray(fetch_image(url)), np.asarray(picture.convert("RGB")))
    for private in ("http://127.0.0.1:1/a.png", "http://localhost/a.png", "http://169.254.169.254/a.png"):
        with pytest.raises(InvalidRequestError, match="image_url"):
            fetch_image(private)
    with pytest.raises(InvalidRequestError, match="audio_url"):
        fetch_audio("data:audio/wav;base64,AAAA")
    clear = Image.new("RGBA", (4, 4), (0, 0, 0, 0))
    assert convert_image_mode(clear, "RGB").getpixel((0, 0)) == (255, 255, 255)
    assert convert_image_mode(clear, "RGB", (9, 8, 7)).getpixel((0, 0)) == (9, 8, 7)
    assert convert_image_mode(clear, "L").mode == "L" and rescale_image_size(clear, 0.5).size == (2, 2)
