"""A tiny Whisper with all of its special tokens, saved as users' models are: it hears 30 seconds, and writes a few
letters that mean nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer

from tests.helpers.seeded import same_every_time
from tests.helpers.tiny_models import save_tokenizer

LANGUAGES = ("en", "de", "fr")
DECODER = 48  # positions: few words for a window
NUM_TIMES = 1501  # <|0.00|> to <|30.00|>
SPECIAL = (
    "<|endoftext|>",
    "<|startoftranscript|>",
    *(f"<|{language}|>" for language in LANGUAGES),
    *("<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"),
)


@same_every_time
def make_whisper(directory: Path) -> Path:
    """Saves it into `directory`, which is made where needed, and returns it. The same files every time."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    directory.mkdir(parents=True, exist_ok=True)
    tokens = _save_tokenizer(directory)
    end = tokens["<|endoftext|>"]
    config = WhisperConfig(
        vocab_size=tokens["<|notimestamps|>"] + 1 + NUM_TIMES,
        num_mel_bins=80,
        d_model=32,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_source_positions=1500,
        max_target_positions=DECODER,
        decoder_start_token_id=tokens["<|startoftranscript|>"],
        pad_token_id=end,
        bos_token_id=end,
        eos_token_id=end,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    model = WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("weight") and parameter.dim() > 1 and "embed_positions" not in name:
                heard = "encoder_attn" in name  # what is said depends on the sound
                parameter.normal_(0.0, 0.6 if heard or "embed_tokens" in name else 0.2)
    model.save_pretrained(directory)
    _save_settings(directory, tokens)
    return directory


def _save_tokenizer(directory: Path) -> dict[str, int]:
    """-> its special tokens' ids"""
    save_tokenizer(directory)
    path = directory / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    tokenizer.add_tokens([AddedToken(f"<|{step * 0.02:.2f}|>", special=False) for step in range(NUM_TIMES)])
    tokenizer.save(str(path))
    settings = directory / "tokenizer_config.json"
    told = json.loads(settings.read_text()) | {"eos_token": SPECIAL[0], "pad_token": SPECIAL[0]}
    del told["chat_template"]
    settings.write_text(json.dumps(told))
    return {name: tokenizer.token_to_id(name) for name in SPECIAL}


def _save_settings(directory: Path, tokens: dict[str, int]) -> None:
    """As Whisper's own: what is never written, where words are aligned, how sound becomes features."""
    vocabulary = Tokenizer.from_file(str(directory / "tokenizer.json")).get_vocab()
    words = re.compile("Ġ?[a-z]+")
    times = range(tokens["<|notimestamps|>"] + 1, len(vocabulary))
    kept = {tokens["<|endoftext|>"], *times, *(token for text, token in vocabulary.items() if words.fullmatch(text))}
    never = [token for token in range(len(vocabulary)) if token not in kept]
    generation = {
        "is_multilingual": True,
        "eos_token_id": tokens["<|endoftext|>"],
        "decoder_start_token_id": tokens["<|startoftranscript|>"],
        "suppress_tokens": never,
        "begin_suppress_tokens": [tokens["<|endoftext|>"]],
        "max_initial_timestamp_index": 50,
        "alignment_heads": [[1, 0], [1, 1]],
    }
    (directory / "generation_config.json").write_text(json.dumps(generation))
    features = {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": 80,
        "sampling_rate": 16_000,
        "hop_length": 160,
        "n_fft": 400,
        "chunk_length": 30,
    }
    (directory / "preprocessor_config.json").write_text(json.dumps(features))
