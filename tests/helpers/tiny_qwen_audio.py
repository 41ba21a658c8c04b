"""A tiny random Qwen2-Audio that hears two seconds, saved as users' models are."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer

from tests.helpers.seeded import same_every_time
from tests.helpers.tiny_models import BOS, EOS, MAX_LEN, PAD, VOCAB, randomise, save_tokenizer

START, END, SOUND = VOCAB, VOCAB + 1, VOCAB + 2
_MARKS = ("<|audio_bos|>", "<|audio_eos|>", "<|AUDIO|>")
SECONDS, MELS = 2, 16
_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for c in m['content'] %}{% if 'audio_url' in c or c['type'] == 'audio' %}<|audio_bos|><|AUDIO|><|audio_eos|>"
    "{% elif 'text' in c %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@same_every_time
def make_qwen_audio(directory: Path) -> Path:
    """The same files every time."""
    from transformers import Qwen2AudioConfig, Qwen2AudioForConditionalGeneration, WhisperFeatureExtractor

    text = {
        "model_type": "qwen2",
        "vocab_size": VOCAB + len(_MARKS),
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": MAX_LEN,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
    }
    audio = {
        "num_mel_bins": MELS,
        "encoder_layers": 3,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 48,
        "d_model": 32,
        "max_source_positions": SECONDS * 50,
    }
    config = Qwen2AudioConfig(audio_config=audio, text_config=text, audio_token_index=SOUND)
    model = Qwen2AudioForConditionalGeneration(config).eval()
    randomise(model, 0.15, 0.08)
    model.to(torch.float32).save_pretrained(directory)
    save_tokenizer(directory)
    path = directory / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in _MARKS])
    tokenizer.save(str(path))
    told = directory / "tokenizer_config.json"
    told.write_text(json.dumps(json.loads(told.read_text()) | {"chat_template": _TEMPLATE}))
    WhisperFeatureExtractor(feature_size=MELS, chunk_length=SECONDS).save_pretrained(directory)
    settings = json.loads((directory / "preprocessor_config.json").read_text())
    (directory / "preprocessor_config.json").write_text(
        json.dumps(settings | {"processor_class": "Qwen2AudioProcessor"})
    )
    return directory
