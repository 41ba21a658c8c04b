"""Marian's tokenizer: it reads texts of one language and writes those of another."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from cadence.text.sentencepiece.normalizer import MARK
from cadence.text.sentencepiece.source_texts import UNKNOWN, SourceTexts
from cadence.text.special_tokens import SpecialTokens
from cadence.text.tokenizer import Tokenizer, TokenizerOptions


class MarianTokenizer(Tokenizer):
    """Reads as the source does, and writes with the vocabulary of the target."""

    def __init__(
        self,
        source: SourceTexts,
        target_ids: dict[str, int],
        special: SpecialTokens,
        model_max_length: int,
        options: TokenizerOptions,
    ) -> None:
        backend = Backend(models.WordLevel(target_ids, unk_token=UNKNOWN))
        backend.decoder = decoders.Sequence([decoders.Replace(MARK, " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
        super().__init__(backend, special, model_max_length=model_max_length, options=options)
        self._source = source

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return self._source.ids(text) + ([self.special.eos_id] if add_special_tokens else [])

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        return [self.encode(text, add_special_tokens) for text in texts]

    def tokenize(self, text: str, add_special_tokens: bool = False) -> list[str]:
        return self._source.pieces(text) + ([self.special.eos_token] if add_special_tokens else [])

    def offsets(self, text: str, add_special_tokens: bool = True) -> tuple[list[int], list[tuple[int, int]]]:
        """Normalised texts are not mapped back: no places, so that none is wrong."""
        return [], []
