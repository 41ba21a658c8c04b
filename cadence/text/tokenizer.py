"""Text to token ids and back: a `tokenizers` backend plus what the model's files say around it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, processors
from tokenizers import Tokenizer as Backend

from cadence.core.errors import InvalidRequestError, TemplateError
from cadence.text.chat_template import ChatRequest, ChatTemplates
from cadence.text.detokenizer import IncrementalDetokenizer
from cadence.text.pieces import TokenPieces
from cadence.text.special_tokens import SpecialTokens
from cadence.text.token_bound import TokenBound, utf8_size

__all__ = ["SpecialTokens", "Tokenizer", "TokenizerOptions"]

SHORT_TEXT = 2048  # characters, encoded in 10 ms at worst
NO_MAX_LENGTH = 10**30  # model_max_length when the files give none

# Undoes the spaces that word-splitting tokenizers leave before punctuation and contractions; applied in this order.
_CLEAN_UPS = (
    *((" " + mark, mark) for mark in ".?!,"),
    (" ' ", "'"),
    *((" " + ending, ending) for ending in ("n't", "'m", "'s", "'ve", "'re")),
)


@dataclass(frozen=True, slots=True)
class TokenizerOptions:
    """The rarer things a tokenizer's files say."""

    clean_up_spaces: bool = False  # ignored for BPE, whose spaces are exact
    named_templates: Mapping[str, str] = field(default_factory=dict)  # templates beside the default, e.g. "tool_use"
    mistral_file: Path | None = None  # by which the package mistral_common writes chats; None = a template does


class Tokenizer:
    """Behaves as the fast tokenizers of `transformers` do, for what an engine and its users need of them.

    Text is encoded with special tokens recognised wherever they are written, also inside a user's message, as
    `transformers` does by default. `EscapedChats` (chats.py) tells the two apart.
    """

    def __init__(
        self,
        backend: Backend,
        special: SpecialTokens,
        chat_template: str = "",
        model_max_length: int = NO_MAX_LENGTH,
        options: TokenizerOptions | None = None,
    ) -> None:
        options = options or TokenizerOptions()
        backend.no_truncation()
        backend.no_padding()
        register_special(backend, special)
        _ensure_bos_eos(backend, special)
        self.backend = backend
        self.special = special
        self.chat_template = chat_template
        self.model_max_length = model_max_length
        self.clean_up_spaces = options.clean_up_spaces and type(backend.model).__name__ != "BPE"
        added = backend.get_added_tokens_decoder()
        self.added_token_ids: dict[int, str] = {token_id: token.content for token_id, token in added.items()}
        self.skipped_ids = frozenset(token_id for token_id, token in added.items() if token.special)  # when decoding
        self.pieces = TokenPieces.of(backend, self.skipped_ids)
        self.mistral_file = options.mistral_file
        self._named_templates = dict(options.named_templates)
        self._templates = ChatTemplates()
        self._max_token_id = max(backend.get_vocab().values(), default=-1)

    def loaded(self) -> Tokenizer:
        """Itself. `NullTokenizer` refuses here, and in `require`."""
        return self

    def require(self, what: str, field: str) -> None:
        """Nothing: there is a tokenizer for `what`."""

    # Text to ids

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return encode_with(self.backend, text, add_special_tokens)

    def single_token(self, text: str) -> int | None:
        """The token that this text is; None where it takes several."""
        ids = self.encode(text, add_special_tokens=False)
        return ids[0] if len(ids) == 1 else None

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        with refused_texts():
            encodings = self.backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in encodings]

    def offsets(self, text: str, add_special_tokens: bool = True) -> tuple[list[int], list[tuple[int, int]]]:
        """The tokens of a text, and where in it each begins and ends, in characters."""
        with refused_texts():
            (encoding,) = self.backend.encode_batch([text], add_special_tokens=add_special_tokens)
        return encoding.ids, encoding.offsets

    def __call__(self, text: str | Sequence[str], add_special_tokens: bool = True) -> dict[str, Any]:
        if isinstance(text, str):
            ids = self.encode(text, add_special_tokens)
            return {"input_ids": ids, "attention_mask": [1] * len(ids)}
        batch = self.encode_batch(text, add_special_tokens)
        return {"input_ids": batch, "attention_mask": [[1] * len(ids) for ids in batch]}

    def tokenize(self, text: str, add_special_tokens: bool = False) -> list[str]:
        return self.backend.encode(text, add_special_tokens=add_special_tokens).tokens

    @cached_property
    def bound(self) -> TokenBound:
        return TokenBound.of(self.backend)

    def check_fits(self, text: str, max_model_len: int, field: str) -> None:
        """Refuses, without reading it, a text that must have too many tokens for a prompt."""
        least = self.bound.least_tokens(text, max_model_len)
        if least >= max_model_len:
            raise InvalidRequestError(
                f"{field} has {utf8_size(text)} bytes of text, which are at least {least} tokens; with "
                f"max_model_len={max_model_len} a prompt may have at most {max_model_len - 1}",
                field,
            )

    # Ids to text

    def decode(self, ids: int | Sequence[int], skip_special_tokens: bool = True) -> str:
        """Ids past the vocabulary give no text, as models may have padded vocabularies."""
        id_list = [ids] if isinstance(ids, int) else list(ids)
        try:
            text = self.backend.decode_batch([id_list], skip_special_tokens=skip_special_tokens)[0]  # releases the GIL
        except (TypeError, OverflowError) as error:
            raise InvalidRequestError("token ids must be integers >= 0 and below 2**32", field="token_ids") from error
        return _clean_up(text) if self.clean_up_spaces else text

    def token_text(self, token_id: int) -> str | None:
        """The text of one token, also of a special one."""
        return self.decode([token_id], skip_special_tokens=False)

    def detokenizer(
        self, prompt_token_ids: Sequence[int], skip_special_tokens: bool, spaces_between_special_tokens: bool
    ) -> IncrementalDetokenizer:
        return IncrementalDetokenizer(self, prompt_token_ids, skip_special_tokens, spaces_between_special_tokens)

    def batch_decode(self, batch: Iterable[Sequence[int]], skip_special_tokens: bool = True) -> list[str]:
        return [self.decode(ids, skip_special_tokens) for ids in batch]

    def convert_ids_to_tokens(
        self, ids: int | Sequence[int], skip_special_tokens: bool = False
    ) -> str | list[str | None] | None:
        if isinstance(ids, int):
            return self.backend.id_to_token(ids)
        skipped = set(self.all_special_ids) if skip_special_tokens else set()
        return [self.backend.id_to_token(int(i)) for i in ids if i not in skipped]

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> int | list[int | None] | None:
        if isinstance(tokens, str):
            found = self.backend.token_to_id(tokens)
            return self.unk_token_id if found is None else found
        return [self.convert_tokens_to_ids(token) for token in tokens]  # type: ignore[misc]

    # Vocabulary

    @property
    def vocab_size(self) -> int:
        """Tokens of the model alone, without added ones."""
        return self.backend.get_vocab_size(with_added_tokens=False)

    def __len__(self) -> int:
        return self.backend.get_vocab_size(with_added_tokens=True)

    @property
    def max_token_id(self) -> int:
        return self._max_token_id

    def get_vocab(self) -> dict[str, int]:
        return self.backend.get_vocab(with_added_tokens=True)

    def get_added_vocab(self) -> dict[str, int]:
        return {token: token_id for token_id, token in self.added_token_ids.items()}

    # Special tokens, None where the model has none

    @property
    def bos_token(self) -> str | None:
        return self.special.bos_token or None

    @property
    def eos_token(self) -> str | None:
        return self.special.eos_token or None

    @property
    def pad_token(self) -> str | None:
        return self.special.pad_token or None

    @property
    def unk_token(self) -> str | None:
        return self.special.unk_token or None

    @property
    def bos_token_id(self) -> int | None:
        return self.special.bos_id if self.special.bos_id >= 0 else None

    @property
    def eos_token_id(self) -> int | None:
        return self.special.eos_id if self.special.eos_id >= 0 else None

    @property
    def pad_token_id(self) -> int | None:
        return self.backend.token_to_id(self.special.pad_token)

    @property
    def unk_token_id(self) -> int | None:
        return self.backend.token_to_id(self.special.unk_token)

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Every id that ends a generation: the tokenizer's eos and those the generation config names."""
        return self.special.eos_ids()

    @property
    def special_tokens_map(self) -> dict[str, str]:
        return self.special.named()

    @property
    def all_special_tokens(self) -> list[str]:
        return list(dict.fromkeys([*self.special.named().values(), *self.special.additional()]))

    @property
    def all_special_ids(self) -> list[int]:
        ids = (self.backend.token_to_id(token) for token in self.all_special_tokens)
        return [token_id for token_id in ids if token_id is not None]

    # Chat

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str | list[int]:
        """kwargs: `chat_template`, `continue_final_message`, `content_format`; all others reach the template."""
        template = kwargs.pop("chat_template", None)
        chat = ChatRequest(
            messages=messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=kwargs.pop("continue_final_message", False),
            content_format=kwargs.pop("content_format", "auto"),
            kwargs=kwargs,
        )
        text = self.render_chat(chat, template or "")
        return self.encode(text, add_special_tokens=False) if tokenize else text

    def render_chat(self, chat: ChatRequest, template: str = "") -> str:
        """`template`: a jinja source or the name of one of the model's templates; "" = the model's own."""
        return self._templates.render(self.pick_template(template, bool(chat.tools)), chat, self.special)

    def pick_template(self, template: str, has_tools: bool) -> str:
        if template:
            return self._named_templates.get(template, template)
        if has_tools and "tool_use" in self._named_templates:
            return self._named_templates["tool_use"]
        if not self.chat_template:
            message = "this model has no chat template; give one with --chat-template (in Python: chat_template=...)"
            raise TemplateError(message, field="chat_template")
        return self.chat_template


def encode_with(backend: Backend, text: str, add_special_tokens: bool) -> list[int]:
    """Long texts by the call that releases the GIL, which costs short ones more than it gives."""
    with refused_texts():
        if len(text) > SHORT_TEXT:
            return backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return backend.encode(text, add_special_tokens=add_special_tokens).ids


@contextmanager
def refused_texts() -> Iterator[None]:
    """A text that the backend cannot read is refused, whatever the backend raises."""
    try:
        yield
    except (TypeError, UnicodeError) as error:
        raise InvalidRequestError("the prompt is not valid text", field="prompt") from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # tokenizers' own, no Exception, and of no module
            raise
        if "memory" in str(error):
            raise MemoryError("there is not enough memory to tokenise this text") from error
        raise InvalidRequestError("the prompt cannot be tokenised", field="prompt") from error


def _clean_up(text: str) -> str:
    for spaced, plain in _CLEAN_UPS:
        text = text.replace(spaced, plain)
    return text


def register_special(backend: Backend, special: SpecialTokens) -> None:
    """Makes the backend treat every named special token as one (recognised in text, skipped in decoding)."""
    known = {token.content: token.special for token in backend.get_added_tokens_decoder().values()}
    wanted = dict.fromkeys([*special.named().values(), *special.additional()])
    missing = [AddedToken(token, special=True, normalized=False) for token in wanted if not known.get(token, False)]
    if missing:
        backend.add_special_tokens(missing)


def _ensure_bos_eos(backend: Backend, special: SpecialTokens) -> None:
    """Installs a post-processor when the backend does not already add the bos and eos that `special` promises."""
    ids = backend.encode("").ids
    has_bos = ids[:1] == [special.bos_id]
    has_eos = ids[-1:] == [special.eos_id]
    if (special.add_bos and not has_bos) or (special.add_eos and not has_eos):
        backend.post_processor = _bos_eos_processor(special)


def _bos_eos_processor(special: SpecialTokens) -> processors.TemplateProcessing:
    bos = [f"{special.bos_token}:0"] if special.add_bos else []
    eos = [f"{special.eos_token}:0"] if special.add_eos else []
    tokens = {special.bos_token: special.bos_id} if special.add_bos else {}
    tokens |= {special.eos_token: special.eos_id} if special.add_eos else {}
    return processors.TemplateProcessing(single=[*bos, "$A:0", *eos], special_tokens=list(tokens.items()))
