"""Tiny SentencePiece models, trained on the spot and saved as Marian and T5 carry them."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path

import sentencepiece

from tests.helpers.tiny_tokenizers import CORPUS

FRENCH = [
    "Le renard brun saute par-dessus le chien paresseux, et l'été n'est pas loin.",
    "Cœur, façade, où, Noël : « douze singes », trois cents mots !",
] * 8


def trained(texts: list[str], pieces: int = 160, model_type: str = "unigram", **options: object) -> bytes:
    file = BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=file,
        vocab_size=pieces,
        model_type=model_type,
        minloglevel=3,
        hard_vocab_limit=False,
        num_threads=1,
        **options,
    )
    return file.getvalue()


def save_marian(directory: Path) -> Path:
    """Some pieces of the source have no id, and some ids no piece of the source."""
    source = trained(CORPUS, bos_id=-1)
    target = trained(FRENCH, pieces=100, bos_id=-1)
    pieces = dict.fromkeys(["</s>", "<unk>", *_pieces(source)[::2], *_pieces(source)[1:40:2], *_pieces(target)])
    vocab = {piece: number for number, piece in enumerate([*pieces, ">>fra<<", ">>deu<<", "<pad>"])}
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "source.spm").write_bytes(source)
    (directory / "target.spm").write_bytes(target)
    (directory / "vocab.json").write_text(json.dumps(vocab))
    (directory / "tokenizer_config.json").write_text(json.dumps({"source_lang": "en", "target_lang": "fr"}))
    (directory / "config.json").write_text(json.dumps({"model_type": "marian"}))
    return directory


def save_t5(directory: Path) -> Path:
    model = trained(CORPUS, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "spiece.model").write_bytes(model)
    (directory / "config.json").write_text(json.dumps({"model_type": "t5"}))
    return directory


def _pieces(model: bytes) -> list[str]:
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(number) for number in range(processor.get_piece_size())]
