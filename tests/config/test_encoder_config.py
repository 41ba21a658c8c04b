"""What the files of a model with an encoder say of it, and what an engine makes of that."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cadence.config.args import EngineArgs
from cadence.config.encoder_config import NO_ENCODER, EncoderConfig, resolve_encoder
from cadence.config.engine_config import SchedulerConfig
from cadence.config.hf import make_hf_config
from cadence.config.media_config import NO_MEDIA
from cadence.config.resolve.resolve import _with_encoder
from cadence.core.errors import ConfigError
from tests.helpers.toy_engine import make_config

BART = {"architectures": ["BartForConditionalGeneration"], "is_encoder_decoder": True, "max_position_embeddings": 1024}
T5 = {"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True, "decoder_start_token_id": 0}


def encoder_of(raw: dict[str, Any], **generation: Any) -> EncoderConfig:
    return resolve_encoder(make_hf_config("tiny", Path("config.json"), raw, generation))


def scheduled(encoder: EncoderConfig, **options: Any) -> SchedulerConfig:
    model: Any = SimpleNamespace(encoder=encoder, media=NO_MEDIA)
    return _with_encoder(make_config(max_num_batched_tokens=64), EngineArgs(model="tiny", **options), model)


def test_a_decoder_alone_has_no_encoder() -> None:
    assert encoder_of({"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 64}) is NO_ENCODER
    assert scheduled(NO_ENCODER).max_encoder_len == 0


@pytest.mark.parametrize(
    ("raw", "generation", "begins"),
    [
        (BART, {}, ()),
        (BART | {"decoder_start_token_id": 2}, {}, (2,)),
        (BART | {"decoder_start_token_id": 2, "forced_bos_token_id": 0}, {}, (2, 0)),
        (BART | {"decoder_start_token_id": 2}, {"decoder_start_token_id": 3, "forced_bos_token_id": 0}, (3, 0)),
        (BART | {"decoder_start_token_id": -1, "forced_bos_token_id": 0}, {}, ()),
        (T5 | {"n_positions": 512}, {}, (0,)),
    ],
)
def test_a_decoder_begins_as_its_files_say(
    raw: dict[str, Any], generation: dict[str, Any], begins: tuple[int, ...]
) -> None:
    assert encoder_of(raw, **generation).begins == begins


def test_positions_are_those_of_the_table_or_of_training() -> None:
    assert encoder_of(BART).max_len == 1024
    assert encoder_of(T5 | {"n_positions": 128, "relative_attention_num_buckets": 32}).max_len == 128
    assert encoder_of(T5 | {"relative_attention_num_buckets": 32}).max_len == 512
    whisper = BART | {"max_source_positions": 1500, "max_target_positions": 448, "num_mel_bins": 80}
    assert encoder_of(whisper) == EncoderConfig(max_len=1500, mels=80)


def test_sequences_that_are_ruled_out_are_read_from_either_file() -> None:
    assert encoder_of(BART | {"bad_words_ids": [[7]]}).barred == ((7,),)
    assert encoder_of(BART, bad_words_ids=[[7], [1, 2]]).barred == ((7,), (1, 2))


def test_a_step_has_room_for_one_input_at_least_and_for_as_many_positions_as_tokens() -> None:
    assert scheduled(EncoderConfig(max_len=32)).max_num_encoder_tokens == 64
    assert scheduled(EncoderConfig(max_len=100)).max_num_encoder_tokens == 100
    config = scheduled(EncoderConfig(max_len=100), max_num_encoder_tokens=10)
    assert (config.max_encoder_len, config.max_num_encoder_tokens) == (100, 10)


def test_what_an_encoder_cannot_have_is_refused_and_what_none_needs_is_named(caplog: Any) -> None:
    with pytest.raises(ConfigError, match="max_num_encoder_tokens"):
        EngineArgs(model="tiny", max_num_encoder_tokens=0)
    scheduled(NO_ENCODER, max_num_encoder_tokens=5)
    assert "max_num_encoder_tokens has no effect" in caplog.text
