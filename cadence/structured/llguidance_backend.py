"""Grammars by llguidance: read in a moment, worked out as they are followed, under limits of its own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from cadence.core.grammar import GrammarKind, GrammarSpec
from cadence.core.shown import cut
from cadence.structured.canonical import Encode
from cadence.structured.grammar import MaskArray
from cadence.structured.schema import closed_text
from cadence.structured.structural_tag import structural_tag_as_lark
from cadence.structured.vocabulary import Vocabulary

# Of llguidance's own units. Half of what it allows by default: about 10 ms for a mask at worst.
_STEP_FUEL = 100_000
_STEP_ITEMS = 25_000
NO_TOKEN = "NoExtension"  # in llguidance's error where nothing may follow, rather than that it took too much work
_SPECIAL = b"\xff"  # no text begins with this byte: what follows is the name of a special token


class LlguidanceTables:
    """The vocabulary as llguidance wants it. `encode`: a text's tokens. Where text is forced it may only be written as
    they are."""

    def __init__(self, vocabulary: Vocabulary, encode: Encode, package: Any) -> None:
        self.package = package
        self.special = {name.decode(errors="replace"): token for token, name in vocabulary.special.items()}
        self.tokenizer = package.LLTokenizer(
            _TokenizerForm(vocabulary, encode), eos_token=list(vocabulary.stop_ids) or None
        )
        self.limits = package.LLParserLimits(
            step_lexer_fuel=_STEP_FUEL, step_max_items=_STEP_ITEMS, verbose_errors=False
        )

    def regex(self, pattern: str) -> str:
        r"""As it stands between slashes. \d, \w and \s are of ASCII, as xgrammar has them."""
        return str(self.package.regex_to_lark(pattern, "dws"))


class _TokenizerForm:
    """The names that llguidance looks for."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, encode: Encode) -> None:
        special = vocabulary.special
        self.tokens = [_SPECIAL + special[i] if i in special else piece for i, piece in enumerate(vocabulary.pieces)]
        self.special_token_ids = list(special)
        self.eos_token_id = vocabulary.stop_ids[0] if vocabulary.stop_ids else 0
        self._encode = encode

    def __call__(self, text: str | bytes) -> list[int]:
        return self._encode(text if isinstance(text, bytes) else text.encode())


def greedy_encoder(vocabulary: Vocabulary) -> Encode:
    """The longest token first: for where there is no tokenizer."""
    tokens = {piece: token for token, piece in enumerate(vocabulary.pieces) if piece}
    longest = max(map(len, tokens), default=1)

    def encode(text: bytes) -> list[int]:
        found, at = [], 0
        while at < len(text):
            ends = range(min(at + longest, len(text)), at, -1)
            end = next((end for end in ends if text[at:end] in tokens), 0)
            if not end:
                return []
            found.append(tokens[text[at:end]])
            at = end
        return found

    return encode


def compile_with_llguidance(spec: GrammarSpec, tables: LlguidanceTables) -> str:
    """-> the grammar as llguidance reads it. Raises ValueError for one that it refuses."""
    written = _written(spec, tables)
    problem = tables.package.LLMatcher.validate_grammar(written, tables.tokenizer, limits=tables.limits)
    if problem and not problem.startswith("WARNING"):
        raise ValueError(problem)
    return written


def _written(spec: GrammarSpec, tables: LlguidanceTables) -> str:
    form = tables.package.LLMatcher
    match spec.kind:
        case GrammarKind.JSON_OBJECT:
            return _json(spec, '{"type": "object"}', form)
        case GrammarKind.JSON_SCHEMA:
            return _json(spec, closed_text(spec.text), form)
        case GrammarKind.REGEX:
            return str(form.grammar_from_lark(f"start: /{tables.regex(spec.text)}/"))
        case GrammarKind.CHOICE:
            return str(form.grammar_from_lark(choice_as_lark(json.loads(spec.text))))
        case GrammarKind.EBNF:
            from llguidance.gbnf_to_lark import gbnf_to_lark

            return str(form.grammar_from_lark(gbnf_to_lark(spec.text)))
        case GrammarKind.LARK:
            return str(form.grammar_from_lark(spec.text))
        case GrammarKind.STRUCTURAL_TAG:
            return str(form.grammar_from_lark(structural_tag_as_lark(spec.text, tables.special, tables.regex)))


def _json(spec: GrammarSpec, schema: str, form: Any) -> str:
    options: dict[str, Any] = {"whitespace_flexible": spec.any_whitespace}
    if not spec.any_whitespace:
        options |= {"item_separator": ", ", "key_separator": ": "}
    if spec.whitespace_pattern:
        options |= {"whitespace_pattern": spec.whitespace_pattern}
    return str(form.grammar_from_json_schema(schema, options))


def choice_as_lark(choices: list[str]) -> str:
    return "start: " + " | ".join(json.dumps(choice) for choice in choices)


@dataclass(frozen=True, slots=True)
class LlguidanceGrammar:
    matcher: Any  # at the beginning; copied, never moved
    num_bytes: int

    @classmethod
    def read(cls, spec: GrammarSpec, data: str, tables: LlguidanceTables) -> LlguidanceGrammar:
        """From what `compile_with_llguidance` gave."""
        matcher = tables.package.LLMatcher(tables.tokenizer, data, log_level=0, limits=tables.limits)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return cls(matcher, 100 * len(data))

    def position(self) -> LlguidancePosition:
        return LlguidancePosition(self.matcher.deep_copy())


class LlguidancePosition:
    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    @property
    def error(self) -> str:
        return cut(self._matcher.get_error().replace("<non-verbose/>", "")).strip() if self._matcher.is_error() else ""

    @property
    def complete(self) -> bool:
        return bool(self._matcher.is_accepting())

    def accept(self, token: int) -> bool:
        matcher = self._matcher
        return matcher.validate_tokens([token]) == 1 and bool(matcher.consume_token(token))

    def rollback(self, count: int) -> None:
        self._matcher.rollback(count)

    def fill(self, mask_np: MaskArray) -> None:
        self._matcher.unsafe_compute_mask_ptr(mask_np.ctypes.data, mask_np.nbytes)
        if self._matcher.is_error():
            mask_np[:] = 0

    def forced_text(self) -> bytes:
        return bytes(self._matcher.compute_ff_bytes())
