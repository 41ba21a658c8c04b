"""What a prompt becomes where the model has an encoder: what that reads, and what the decoder begins with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cadence.audio.feature_config import WHISPER_FEATURES
from cadence.audio.features import log_mel
from cadence.config.encoder_config import EncoderConfig
from cadence.core.contract.request import EngineRequest
from cadence.core.errors import ContextLengthError, InvalidRequestError
from cadence.core.inputs.encoder_input import EncoderInput
from cadence.core.sampling_params import SamplingParams
from cadence.engine.text.input_limits import InputLimits
from cadence.engine.text.input_processor import InputProcessor
from cadence.engine.text.prompts import ParsedPrompt, parse_prompt, tokenised
from cadence.text.tokenizer import Tokenizer

ENCODER = EncoderConfig(max_len=20, begins=(2, 7))
LIMITS = InputLimits(
    vocab_size=512, max_model_len=12, max_logprobs=5, seed=7, eos_token_ids=frozenset({2}), encoder=ENCODER
)
HEARS = EncoderConfig(max_len=1500, mels=80, begins=(3,))
IDS = [5, 6, 9]
SECOND = 16_000  # samples


@pytest.fixture
def inputs(tokenizer: Tokenizer) -> InputProcessor:
    return InputProcessor(LIMITS, tokenizer)


def processed(inputs: InputProcessor, prompt: Any, **params: Any) -> EngineRequest:
    return inputs.process("r", prompt, SamplingParams(**params)).request


def read_and_begun(request: EngineRequest) -> tuple[list[int], list[int]]:
    content = request.attached(EncoderInput)
    assert content is not None and content.length == len(content.token_ids_np)
    return content.token_ids_np.tolist(), request.prompt_token_ids


def test_every_shape_of_a_prompt(inputs: InputProcessor, tokenizer: Tokenizer) -> None:
    dog, bare = tokenizer.encode("the dog"), tokenizer.encode("the dog", add_special_tokens=False)
    shapes: list[tuple[Any, list[int], list[int]]] = [
        ("the dog", dog, [2, 7]),
        (IDS, IDS, [2, 7]),
        ({"prompt": "the dog"}, dog, [2, 7]),
        ({"prompt_token_ids": IDS, "prompt": "as it was"}, IDS, [2, 7]),
        ({"encoder_prompt": "the dog"}, dog, [2, 7]),
        ({"encoder_prompt": "the dog", "decoder_prompt": None}, dog, [2, 7]),
        ({"encoder_prompt": "the dog", "decoder_prompt": ""}, dog, [2, 7]),
        ({"encoder_prompt": IDS, "decoder_prompt": "the dog"}, IDS, [2, *bare]),
        ({"encoder_prompt": IDS, "decoder_prompt": [4, 5]}, IDS, [2, 4, 5]),
        ({"encoder_prompt": IDS, "decoder_prompt": [2, 4]}, IDS, [2, 4]),
        ({"encoder_prompt": {"prompt_token_ids": IDS}, "decoder_prompt": {"prompt": "the dog"}}, IDS, [2, *bare]),
        ({"encoder_prompt": EncoderInput.of_tokens(IDS), "decoder_prompt": [2]}, IDS, [2]),
    ]
    for prompt, read, begun in shapes:
        assert read_and_begun(processed(inputs, prompt)) == (read, begun)


def test_what_is_said_beside_two_prompts_holds_for_both(inputs: InputProcessor) -> None:
    given = {"encoder_prompt": IDS, "decoder_prompt": [4], "cache_salt": "s", "tenant": "t"}
    request = processed(inputs, given)
    assert (request.cache_salt, request.tenant) == ("s", "t")


def test_a_prompt_that_was_prepared_stays_as_it_is(inputs: InputProcessor) -> None:
    """So beams go on from it."""
    prepared = inputs.prepared(parse_prompt({"encoder_prompt": IDS}))
    beam = replace(prepared, token_ids=[*(prepared.token_ids or []), 8])
    assert read_and_begun(processed(inputs, beam)) == (IDS, [2, 7, 8])


@pytest.mark.parametrize(
    ("prompt", "field", "says"),
    [
        ({"prompt_token_ids": []}, "prompt", "at least one token"),
        ([1] * 21, "prompt", "has 21 tokens; this model's encoder reads at most 20"),
        ([1, 512], "prompt", "512"),
        ({"encoder_prompt": []}, "encoder_prompt", "at least one token"),
        ({"encoder_prompt": [1] * 21}, "encoder_prompt", "at most 20"),
        ({"encoder_prompt": EncoderInput.of_tokens([1] * 21)}, "encoder_prompt", "at most 20"),
        ({"encoder_prompt": [1, -1]}, "encoder_prompt", "position 1 of the encoder_prompt is out of range"),
        ({"encoder_prompt": [1, "2"]}, "encoder_prompt", "must be integers"),
        ({"encoder_prompt": 3.5}, "encoder_prompt", "encoder_prompt: a prompt must be"),
        ({"decoder_prompt": [2]}, "encoder_prompt", "encoder_prompt is missing"),
        ({"encoder_prompt": IDS, "prompt": "x"}, "prompt", "not both"),
        ({"encoder_prompt": IDS, "decoder_prompt": [2, 512]}, "decoder_prompt", "out of range"),
        ({"encoder_prompt": IDS, "decoder_prompt": [2, None]}, "decoder_prompt", "must be integers"),
        ({"prompt": "x", "multi_modal_data": {"audio": (np.zeros(9), 16000)}}, "multi_modal_data", "reads text"),
        ({"prompt": "x", "multi_modal_data": {"image": 1}}, "multi_modal_data", "'audio'"),
    ],
)
def test_a_prompt_that_cannot_be_served_is_named(inputs: InputProcessor, prompt: Any, field: str, says: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        processed(inputs, prompt)
    assert caught.value.field == field and says in str(caught.value)


def test_a_decoder_prompt_has_the_length_of_the_decoder(inputs: InputProcessor) -> None:
    assert processed(inputs, {"encoder_prompt": IDS, "decoder_prompt": [2] * 11}).stop.max_tokens == 1
    with pytest.raises(ContextLengthError):
        processed(inputs, {"encoder_prompt": IDS, "decoder_prompt": [2] * 12})


def test_without_a_named_beginning_a_decoder_prompt_is_asked_for(tokenizer: Tokenizer) -> None:
    inputs = InputProcessor(replace(LIMITS, encoder=EncoderConfig(max_len=20)), tokenizer)
    with pytest.raises(InvalidRequestError, match="decoder_start_token_id"):
        processed(inputs, IDS)
    assert read_and_begun(processed(inputs, {"encoder_prompt": IDS, "decoder_prompt": [4]})) == (IDS, [4])


def test_what_the_models_files_rule_out_is_never_chosen(tokenizer: Tokenizer) -> None:
    inputs = InputProcessor(replace(LIMITS, encoder=replace(ENCODER, barred=((7,),))), tokenizer)
    assert processed(inputs, IDS).params.bad_words_token_ids == [[7]]
    words = processed(inputs, IDS, bad_words=["dog"]).params.bad_words_token_ids
    assert words is not None and words[-1] == [7] and len(words) > 1


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        ({"encoder_prompt": IDS}, "encoder_prompt"),
        ({"encoder_prompt": IDS, "decoder_prompt": IDS}, "encoder_prompt"),
        ({"prompt": "x", "multi_modal_data": {"audio": (np.zeros(9), 16000)}}, "multi_modal_data"),
    ],
)
def test_a_decoder_alone_has_nothing_to_read(tokenizer: Tokenizer, prompt: Any, field: str) -> None:
    inputs = InputProcessor(replace(LIMITS, encoder=EncoderConfig()), tokenizer)
    with pytest.raises(InvalidRequestError, match="cannot be used: this model") as caught:
        processed(inputs, prompt)
    assert caught.value.field == field


def test_audio_is_heard_at_the_models_rate(tokenizer: Tokenizer) -> None:
    inputs = InputProcessor(replace(LIMITS, encoder=HEARS), tokenizer)
    samples_np = np.sin(np.arange(SECOND) / 20).astype(np.float32)
    clip = {"audio": (samples_np, 16_000)}
    for prompt in ({"prompt_token_ids": [3, 4], "multi_modal_data": clip},
                   {"encoder_prompt": {"prompt": "", "multi_modal_data": clip}, "decoder_prompt": [3, 4]}):  # fmt: skip
        request = processed(inputs, prompt)
        content = request.attached(EncoderInput)
        assert content is not None and (content.length, request.prompt_token_ids) == (1500, [3, 4])
        np.testing.assert_array_equal(content.features_np, log_mel(samples_np, WHISPER_FEATURES))
    # The text before, for context, comes before the transcript's beginning.
    context = processed(inputs, {"encoder_prompt": content, "decoder_prompt": [7, 8, 3, 4]})
    assert context.prompt_token_ids == [7, 8, 3, 4]
    slow = processed(inputs, {"prompt": "", "multi_modal_data": {"audio": (samples_np[::2], 8_000)}})
    assert slow.prompt_token_ids == [3] and slow.source_len == 1500


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ("the dog", "multi_modal_data is missing"),
        ({"encoder_prompt": "the dog"}, "reads audio"),
        ({"prompt": "", "multi_modal_data": {"audio": (np.zeros(31 * SECOND), 16_000)}}, "31.0 s long"),
        ({"prompt": "", "multi_modal_data": {"audio": (np.zeros((2, 4)), 16_000)}}, "one channel"),
        ({"prompt": "", "multi_modal_data": {"audio": (np.zeros(0), 16_000)}}, "one channel"),
        ({"prompt": "", "multi_modal_data": {"audio": ([1.0, float("nan")], 16_000)}}, "not finite"),
        ({"prompt": "", "multi_modal_data": {"audio": (["x"], 16_000)}}, "numbers"),
        ({"prompt": "", "multi_modal_data": {"audio": np.zeros(4)}}, "pair"),
        ({"prompt": "", "multi_modal_data": {"audio": (np.zeros(4), 0)}}, "rate"),
    ],
)
def test_audio_that_cannot_be_heard_is_named(tokenizer: Tokenizer, prompt: Any, says: str) -> None:
    inputs = InputProcessor(replace(LIMITS, encoder=HEARS), tokenizer)
    with pytest.raises(InvalidRequestError, match=says):
        processed(inputs, prompt)


def test_tokenization_options_are_for_one_text(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequestError, match="tokenization_kwargs"):
        tokenised({"encoder_prompt": "a"}, tokenizer, {"add_special_tokens": False})
    assert isinstance(tokenised("a", tokenizer, {"add_special_tokens": False}), ParsedPrompt)
