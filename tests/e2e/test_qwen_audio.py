"""Qwen2-Audio as a whole: sounds among tokens, the logprobs of transformers, the same in any company."""

from __future__ import annotations

import shutil
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from cadence import LLM, SamplingParams
from cadence.config.files.qwen_audio import read_qwen_audio
from cadence.config.hf import make_hf_config
from cadence.core.errors import InvalidRequestError, ModelFileError
from tests.helpers.recordings import wav_file
from tests.helpers.tiny_qwen_audio import SECONDS, make_qwen_audio

pytestmark = [pytest.mark.engine]

RATE = 16_000
GREEDY = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True, logprobs=2)
SIGN = "<|audio_bos|><|AUDIO|><|audio_eos|>"
BASE: dict[str, Any] = {"dtype": "float32", "max_num_seqs": 8, "num_gpu_blocks_override": 200}


def sound(seconds: float, seed: int) -> np.ndarray:
    """Tones that change, and noise."""
    rng = np.random.default_rng(seed)
    at = np.arange(int(seconds * RATE)) / RATE
    tone = np.sin(2 * np.pi * (200 + 900 * rng.random() * (1 + at)) * at)
    return (0.4 * tone + 0.05 * rng.standard_normal(len(at))).astype(np.float32)


SOUNDS = [sound(seconds, seed) for seed, seconds in enumerate((0.5, float(SECONDS), 1.2345, 0.021))]
PROMPTS: list[tuple[str, list[np.ndarray]]] = [  # # stands for the next of the sounds
    ("<|user|>#what is the quick brown fox<|end|><|assistant|>", [SOUNDS[0]]),
    ("<|user|>one # and then # two three", [SOUNDS[1], SOUNDS[2]]),
    ("to be or not to be", []),
    ("#", [SOUNDS[3]]),
    ("<|user|>#what is the quick brown fox<|end|><|assistant|>", [SOUNDS[2]]),
]


def prompt(text: str, sounds: Sequence[np.ndarray]) -> dict[str, Any]:
    data = {"multi_modal_data": {"audio": [(each, RATE) for each in sounds]}} if sounds else {}
    return {"prompt": text.replace("#", SIGN), **data}


Answer = tuple[list[int], list[float]]


def say(llm: LLM, prompts: list[dict[str, Any]]) -> list[Answer]:
    found = []
    for output in llm.generate(prompts, GREEDY, use_tqdm=False):
        (completion,) = output.outputs
        assert completion.logprobs is not None
        pairs = zip(completion.token_ids, completion.logprobs, strict=True)
        found.append((list(completion.token_ids), [position[token].logprob for token, position in pairs]))
    return found


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_qwen_audio(tmp_path_factory.mktemp("audio"))


@pytest.fixture(scope="module")
def llm(directory: Path) -> LLM:
    return LLM(model=str(directory), **BASE, enable_prefix_caching=False)


@pytest.fixture(scope="module")
def alone(llm: LLM) -> list[Answer]:
    return [say(llm, [prompt(*each)])[0] for each in PROMPTS]


def test_tokens_and_logprobs_are_those_of_transformers(directory: Path, alone: list[Answer]) -> None:
    import transformers

    model = transformers.Qwen2AudioForConditionalGeneration.from_pretrained(directory, dtype=torch.float32).eval()
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(directory)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    processor = transformers.Qwen2AudioProcessor(extractor, tokenizer)
    for (tokens, logprobs), (text, sounds) in zip(alone, PROMPTS, strict=True):
        audio = {"audio": list(sounds), "sampling_rate": RATE} if sounds else {}
        inputs = processor(text=[text.replace("#", SIGN)], return_tensors="pt", **audio)
        count = inputs["input_ids"].shape[1]
        ids = torch.cat([inputs["input_ids"], torch.tensor([tokens])], dim=1)
        heard = {name: inputs[name] for name in ("input_features", "feature_attention_mask") if sounds}
        with torch.inference_mode():
            logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), **heard).logits[0, count - 1 : -1]
        lines = torch.log_softmax(logits, dim=-1)
        assert tokens == lines.argmax(dim=-1).tolist()
        expected = lines[torch.arange(len(tokens)), torch.tensor(tokens)]
        torch.testing.assert_close(torch.tensor(logprobs), expected, atol=1e-4, rtol=1e-4)
    assert alone[0] != alone[4], "another sound, another answer"


@pytest.mark.parametrize("options", [{}, {"max_num_batched_tokens": 16, "max_num_encoder_tokens": 1}], ids=str)
def test_the_same_alone_and_in_company(directory: Path, alone: list[Answer], options: dict[str, Any]) -> None:
    llm = LLM(model=str(directory), **BASE | options)
    for _ in range(2):  # the second time from caches
        assert say(llm, [prompt(*each) for each in PROMPTS]) == alone


def in_base64(samples_np: np.ndarray) -> str:
    return b64encode(wav_file(samples_np, code=3, bits=32)).decode()


@pytest.mark.parametrize("part", ["input_audio", "audio_url", "audio"])
def test_sounds_in_chats(llm: LLM, part: str) -> None:
    given: dict[str, Any] = {
        "input_audio": {"data": in_base64(SOUNDS[0]), "format": "wav"},
        "audio_url": {"url": f"data:audio/wav;base64,{in_base64(SOUNDS[0])}"},
        "audio": (SOUNDS[0], RATE),
    }
    content = [{"type": part, part: given[part]}, {"type": "text", "text": "one two"}]
    (output,) = llm.chat([{"role": "user", "content": content}], GREEDY, use_tqdm=False)
    asked = prompt("<|user|>#one two<|end|>\n<|assistant|>", [SOUNDS[0]])
    assert list(output.outputs[0].token_ids) == say(llm, [asked])[0][0]


def test_sounds_in_chats_that_are_refused(llm: LLM) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"type": "input_audio", "input_audio": {"data": "?", "format": "wav"}}, "input_audio.data: the data is not"),
        ({"type": "input_audio", "input_audio": {"data": 3}}, "input_audio.data must be a string"),
        ({"type": "input_audio", "input_audio": {"data": "AAAA"}}, "input_audio.data: The file is no audio"),
        ({"type": "audio_url", "audio_url": {"url": "data:image/png;base64,AAAA"}}, "must be a sound"),
        ({"type": "audio_url", "audio_url": {"url": "http://127.0.0.1/a.wav"}}, "audio_url.url"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}, "only text and audio parts"),
    ]
    for part, message in refused:
        with pytest.raises(InvalidRequestError, match=message):
            llm.chat([{"role": "user", "content": [part]}], GREEDY, use_tqdm=False)


def test_weights_by_the_names_of_the_hub(directory: Path, alone: list[Answer], tmp_path: Path) -> None:
    for name in ("config.json", "preprocessor_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(directory / name, tmp_path / name)
    tensors = load_file(directory / "model.safetensors")
    renamed = {name.replace("model.model.", "model."): tensor for name, tensor in tensors.items()}
    assert "language_model.model.norm.weight" in renamed and "language_model.lm_head.weight" in renamed
    save_file(renamed, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert say(LLM(model=str(tmp_path), **BASE), [prompt(*PROMPTS[1])]) == [alone[1]]


def test_sections_of_the_hub_are_filled() -> None:
    """Of Qwen/Qwen2-Audio-7B: what is not said is what the classes of transformers say."""
    text = {"model_type": "qwen2", "intermediate_size": 11_008, "vocab_size": 156_032, "rope_theta": 10_000}
    raw = {"architectures": ["Qwen2AudioForConditionalGeneration"], "text_config": text, "audio_config": {}}
    hf = make_hf_config("qwen", Path("config.json"), raw, {})
    found = [hf[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")]
    assert found == [4096, 32, 32, 156_032]
    assert read_qwen_audio(hf.raw).heard(3000) == (1500, 750)
    for name, value in (("d_model", 0), ("activation_function", "relu"), ("max_source_positions", "1")):
        with pytest.raises(ModelFileError, match=f"audio_config.{name}"):
            read_qwen_audio({"audio_config": {name: value}})


def test_what_is_refused(llm: LLM) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        (prompt("#", [sound(SECONDS + 0.1, 0)]), f"2.1 s long; this model hears at most {SECONDS} s"),
        (prompt("#", [sound(0.015, 0)]), "too short to be heard"),
        (prompt("# #", [SOUNDS[0]]), "the prompt has 2 of"),
        ({"prompt": SIGN, "multi_modal_data": {"audio": (np.zeros((2, 9)), RATE)}}, "one channel"),
        ({"prompt": SIGN, "multi_modal_data": {"audio": (np.full(9, np.nan), RATE)}}, "not finite"),
        ({"prompt": SIGN, "multi_modal_data": {"audio": ("words", RATE)}}, "numbers"),
        ({"prompt": "x", "multi_modal_data": {"image": [np.zeros((8, 8, 3), np.uint8)]}}, "this model takes audio"),
    ]
    for given, message in refused:
        with pytest.raises(InvalidRequestError, match=message):
            llm.generate(given, GREEDY, use_tqdm=False)
