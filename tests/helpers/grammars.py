"""Vocabularies, compiled grammars, and outputs drawn at random from what they allow."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from functools import cache

import numpy as np

from cadence.core.failure import Failure
from cadence.core.grammar import GrammarBackend, GrammarKind, GrammarSpec
from cadence.structured.compiler import Backends
from cadence.structured.grammar import Grammar, MaskArray, Matcher, mask_words
from cadence.structured.llguidance_backend import greedy_encoder
from cadence.structured.service import GrammarTicket
from cadence.structured.vocabulary import Vocabulary
from cadence.text.load import load_gguf_tokenizer
from tests.helpers.smollm2 import smollm2_path

EOS = 1
PADDING = 5  # logits past the tokens


@cache
def smollm2_backends() -> Backends:
    tokenizer = load_gguf_tokenizer(smollm2_path())
    vocabulary = Vocabulary.of(tokenizer, len(tokenizer) + PADDING, tokenizer.eos_token_ids)
    return Backends(vocabulary, lambda text: tokenizer.encode(text.decode(), add_special_tokens=False))


def tiny_backends(pieces: Sequence[bytes]) -> Backends:
    """Two special tokens, the second of which ends a text; then every byte of `pieces`, and the pieces."""
    letters = sorted({bytes([byte]) for piece in pieces for byte in piece})
    tokens = list(dict.fromkeys([*letters, *pieces]))
    special = {0: b"<s>", EOS: b"</s>"}
    vocabulary = Vocabulary((b"", b"", *tokens, *[b""] * PADDING), special, (EOS,))
    return Backends(vocabulary, greedy_encoder(vocabulary))


def compiled(spec: GrammarSpec, backends: Backends) -> Grammar:
    return backends.read(spec, *backends.compile(spec))


def grammar(kind: str, text: str, backends: Backends, backend: str = "auto", **options: bool) -> Grammar:
    return compiled(GrammarSpec(GrammarKind(kind), text, GrammarBackend(backend), **options), backends)


def mask_of(matcher: Matcher, vocab_size: int) -> MaskArray:
    mask_np = np.arange(mask_words(vocab_size), dtype=np.int32) * 0x5BD1E995  # whatever was there before
    matcher.fill(mask_np)
    return mask_np


def allowed(matcher: Matcher, vocab_size: int) -> list[int]:
    bits = np.unpackbits(mask_of(matcher, vocab_size).view(np.uint8), bitorder="little")
    found: list[int] = bits.nonzero()[0].tolist()
    return found


def drawn(grammar: Grammar, seed: int, most: int = 200, end: float = 0.3) -> tuple[list[int], bool]:
    """Tokens drawn from what is allowed, and whether the text ended; where it may end, it does with probability `end`.
    Beyond half of `most`, the shortest way out is looked for by closing tokens."""
    draw, matcher, tokens = random.Random(seed), grammar.matcher(), list[int]()
    while len(tokens) < most and not matcher.finished:
        choice = allowed(matcher, grammar.vocab_size)
        if "takes more than" in matcher.error:  # given up, as a request would be
            break
        assert choice, f"no token is left: {matcher.error}"
        stops = [token for token in choice if token in grammar.stop_ids]
        others = [token for token in choice if token not in grammar.stop_ids]
        token = draw.choice(stops if stops and (not others or draw.random() < end) else others)
        assert matcher.accept(token)
        tokens.append(token)
    return tokens, matcher.finished


@cache
def json_backends() -> Backends:
    """A small vocabulary in which JSON is written letter by letter, or in a few larger pieces."""
    letters = [bytes([code]) for code in range(32, 127)]
    larger = ['": ', '", "', "true", "false", "null", '{"', '"}', "12", "foo", "bar", "[]", "\n", "é"]
    return tiny_backends([*letters, *(piece.encode() for piece in larger)])


_CLOSING = frozenset(b'"}]1truenull0{[')


def json_text(found: Grammar, vocabulary: Vocabulary, seed: int, most: int = 200) -> str | None:
    """An output drawn at random, the more in a hurry the longer it gets; None where it does not end."""
    draw, matcher, tokens = random.Random(seed), found.matcher(), list[int]()
    while len(tokens) < most and not matcher.finished:
        choice = allowed(matcher, found.vocab_size)
        assert choice, f"no token is left after {text_of(tokens, vocabulary)!r}: {matcher.error}"
        quick = [token for token in choice if set(vocabulary.pieces[token]) <= _CLOSING]
        hurries = draw.random() < 0.3 + 0.7 * len(tokens) / most
        stops = [token for token in choice if token in found.stop_ids]
        token = draw.choice(stops if stops and draw.random() < 0.5 else quick if quick and hurries else choice)
        assert matcher.accept(token)
        tokens.append(token)
    return text_of(tokens, vocabulary).decode() if matcher.finished else None


def text_of(tokens: Sequence[int], vocabulary: Vocabulary) -> bytes:
    return b"".join(vocabulary.pieces[token] for token in tokens)


def outcome_of(ticket: GrammarTicket, seconds: float = 250.0) -> Grammar | Failure:
    deadline = time.monotonic() + seconds
    while (found := ticket.outcome) is None:
        assert time.monotonic() < deadline, "there is no outcome"
        time.sleep(0.002)
    return found
