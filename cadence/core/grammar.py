"""What an output must look like, as plain data: it travels with a request and is compiled where the engine is."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

from cadence.core.inputs.attachments import Attachment

GRAMMAR = "grammar"  # the feature's name
MAX_TEXT_BYTES = 2**20  # of a schema, a pattern, a grammar or all choices together


class GrammarKind(StrEnum):
    JSON_OBJECT = "json_object"  # any JSON object; no text
    JSON_SCHEMA = "json_schema"  # text: the schema, as JSON
    REGEX = "regex"  # text: the pattern; the whole output matches it
    CHOICE = "choice"  # text: a JSON list of strings, of which the output is one
    EBNF = "ebnf"  # text: a grammar with a rule `root`, in the notation of llama.cpp (GBNF)
    LARK = "lark"  # text: a grammar with a rule `start`, in Lark's notation
    STRUCTURAL_TAG = "structural_tag"  # text: free text in which certain tags begin structures, as JSON


class GrammarBackend(StrEnum):
    AUTO = "auto"  # xgrammar, or llguidance for what xgrammar cannot do
    XGRAMMAR = "xgrammar"
    LLGUIDANCE = "llguidance"


@dataclass(frozen=True, slots=True)
class GrammarDefaults:
    """What an engine does where a request does not say."""

    backend: GrammarBackend = GrammarBackend.AUTO
    any_whitespace: bool = True


NO_DEFAULTS = GrammarDefaults()


@dataclass(frozen=True, slots=True)
class GrammarSpec(Attachment):
    """One constraint. Equal specs share one compiled grammar."""

    kind: GrammarKind
    text: str = ""
    backend: GrammarBackend = GrammarBackend.AUTO
    any_whitespace: bool = True  # JSON: between tokens, as the model likes; False = one compact form
    whitespace_pattern: str = ""  # JSON: a regular expression for white space between tokens; "" = see any_whitespace
    source: str = field(default="structured_outputs", compare=False)  # the request's field that says so, for errors
    feature: str = GRAMMAR

    lacking: ClassVar[str] = "a grammar needs an engine with a compiler of grammars"

    @property
    def digest(self) -> str:
        """Of the content, as hexadecimal digits."""
        options = f"{self.kind} {self.backend} {self.any_whitespace:d}"
        content = "\0".join((options, self.whitespace_pattern, self.text))
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()
