"""Texts to translate, as Marian reads them: cut by `source.spm`, with the ids that `vocab.json` gives to the pieces of
both languages. A piece without an id is unknown. A text may begin with the language to translate to, `>>fra<<`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tokenizers import Tokenizer as Backend

from cadence.core.errors import InvalidRequestError, TokenizerError
from cadence.text.sentencepiece.model_file import PieceType, SentencePieceFile
from cadence.text.sentencepiece.normalizer import SentencePieceNormalizer
from cadence.text.sentencepiece.unigram import unigram_model

UNKNOWN = "<unk>"
_LANGUAGE = re.compile(">>.*?<<", re.DOTALL)


class SourceTexts:
    """Texts of the source language to ids."""

    def __init__(self, model: SentencePieceFile, ids: Mapping[str, int], special: Sequence[str]) -> None:
        if model.of_type(PieceType.USER_DEFINED):
            raise TokenizerError("source.spm has user-defined pieces, which are not supported")
        self._ids = ids
        self._unknown = ids[UNKNOWN]
        self._normalizer = SentencePieceNormalizer(model)
        self._backend = Backend(unigram_model(model))
        self._special = re.compile("(" + "|".join(re.escape(token) for token in special) + ")")

    def pieces(self, text: str) -> list[str]:
        """Special tokens are recognised wherever they are written."""
        found: list[str] = []
        for part in self._special.split(text):
            found += [part] if self._special.fullmatch(part) else self._plain_pieces(part)
        return found

    def ids(self, text: str) -> list[int]:
        try:
            return [self._ids.get(piece, self._unknown) for piece in self.pieces(text)]
        except (TypeError, UnicodeError) as error:
            raise InvalidRequestError("the prompt is not valid text", field="prompt") from error

    def _plain_pieces(self, text: str) -> list[str]:
        language = _LANGUAGE.match(text)
        code = language.group() if language else ""
        normal = self._normalizer.apply(text[len(code) :])
        return [*([code] if code else []), *self._backend.encode(normal, add_special_tokens=False).tokens]
