"""A tokenizer from the files of a Hugging Face model directory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from cadence.config.files.json_file import MOST_TABLE_BYTES, read_bytes, read_object
from cadence.core.errors import TokenizerError
from cadence.core.shown import cut
from cadence.text.marian import MarianTokenizer
from cadence.text.sentencepiece.merged import merged_backend
from cadence.text.sentencepiece.model_file import read_model_file
from cadence.text.sentencepiece.source_texts import SourceTexts
from cadence.text.sentencepiece.unigram import DEFAULT_EXTRA_IDS, unigram_backend
from cadence.text.special_tokens import SpecialTokens
from cadence.text.tekken import tekken_backend
from cadence.text.tokenizer import NO_MAX_LENGTH, Tokenizer, TokenizerOptions, register_special

Built = TypeVar("Built")
MISTRAL = "mistral"  # of the option tokenizer_mode

_ROLES = ("bos_token", "eos_token", "pad_token", "unk_token")
_OTHER_ROLES = ("sep_token", "cls_token", "mask_token")
_MOST_BYTES = 256 << 20  # of tokenizer.json: the largest vocabularies take 40 MB
_SENTENCEPIECE_ROLES = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}  # where files name none
_MARIAN_MAX_LENGTH = 512
_MERGED_ROLES = {"bos_token": ("<s>", "<bos>"), "eos_token": ("</s>", "<eos>"), "unk_token": ("<unk>",)}
_LEGACY_TOKEN = "<|endoftext|>"  # every role of a vocab.json + merges.txt tokenizer whose files name none


@dataclass(frozen=True, slots=True)
class _Files:
    """What the small JSON files say; {} where a file is absent."""

    directory: Path
    config: Mapping[str, Any]  # tokenizer_config.json
    special_map: Mapping[str, Any]  # special_tokens_map.json
    generation: Mapping[str, Any]  # generation_config.json

    def setting(self, name: str) -> Any:
        value = self.config.get(name)
        return self.special_map.get(name) if value is None else value


@dataclass(frozen=True, slots=True)
class _Found:
    backend: Backend
    roles: Mapping[str, str] = field(default_factory=dict)  # where files name none
    add_bos: bool = False  # the same
    add_eos: bool = False
    frames: bool = False  # whether the backend itself says what it adds around a text
    mistral_file: Path | None = None  # by which `mistral_common` knows the tokenizer


def load_tokenizer(directory: Path, mode: str = "auto") -> Tokenizer:
    """Needs tokenizer.json, or vocab.json and merges.txt, or SentencePiece's files, or tekken.json; every other file is
    optional. mode: mistral = from Mistral's own files alone"""
    directory = Path(directory)
    if not directory.is_dir():
        raise TokenizerError(f"{directory}: no such directory")
    if mode == MISTRAL:
        return _mistral(directory)
    files = _Files(
        directory,
        _read_object(directory / "tokenizer_config.json"),
        _read_object(directory / "special_tokens_map.json"),
        _read_object(directory / "generation_config.json"),
    )
    if (directory / "source.spm").is_file() and not (directory / "tokenizer.json").exists():
        return _build(lambda: _marian(files), f"{directory / 'vocab.json'} is malformed")
    found = _load_backend(files)
    return _build(lambda: _tokenizer(found, files), f"{directory / 'tokenizer_config.json'} is malformed")


def _tokenizer(found: _Found, files: _Files) -> Tokenizer:
    _add_tokens(found.backend, files)
    special = _special_tokens(found, files)
    templates = _chat_templates(files)
    default = templates.pop("default", "")
    clean_up = bool(files.config.get("clean_up_tokenization_spaces", False))
    options = TokenizerOptions(clean_up, templates, None if default else found.mistral_file)
    max_length = _max_length(files.config.get("model_max_length"))
    return Tokenizer(found.backend, special, default, max_length, options)


def _mistral(directory: Path) -> Tokenizer:
    """What Hugging Face's files say beside them does not count, but where texts end and what templates there are."""
    found = _mistral_backend(directory) or _merged(directory / "tokenizer.model", mistral=True)
    if found is None:
        message = "tokenizer_mode=mistral reads tekken.json, tokenizer.model.v3 and its like, or tokenizer.model"
        raise TokenizerError(f"{directory}: {message}; there is none")
    files = _Files(directory, {}, {}, _read_object(directory / "generation_config.json"))
    special = _special_tokens(found, files)
    return Tokenizer(found.backend, special, options=TokenizerOptions(mistral_file=found.mistral_file))


def _marian(files: _Files) -> MarianTokenizer:
    separate = bool(files.config.get("separate_vocabs"))
    source_ids = read_object(files.directory / "vocab.json", MOST_TABLE_BYTES, TokenizerError)
    target_name = "target_vocab.json" if separate else "vocab.json"
    target_ids = read_object(files.directory / target_name, MOST_TABLE_BYTES, TokenizerError)
    eos, unk, pad = (_content(files.setting(role)) or token for role, token in _SENTENCEPIECE_ROLES.items())
    missing = [token for token in (eos, unk) if not isinstance(source_ids.get(token), int)]
    if missing or not all(isinstance(token_id, int) for token_id in target_ids.values()):
        raise TokenizerError(f"{files.directory / 'vocab.json'} must give ids, also of {eos!r} and {unk!r}")
    special = SpecialTokens(
        eos_token=eos,
        pad_token=pad,
        unk_token=unk,
        eos_id=source_ids[eos],
        add_eos=False,  # MarianTokenizer's own encode appends it
        extra={"eos_token_ids": _ids(files.generation.get("eos_token_id"))},
    )
    source = SourceTexts(read_model_file(files.directory / "source.spm"), source_ids, [eos, unk, pad])
    max_length = _max_length(files.config.get("model_max_length", _MARIAN_MAX_LENGTH))
    return MarianTokenizer(source, target_ids, special, max_length, TokenizerOptions())


def _load_backend(files: _Files) -> _Found:
    path = files.directory / "tokenizer.json"
    if path.exists():
        backend = _build(lambda: Backend.from_str(_read_text(path)), f"{path} is corrupt")
        _set_prefix_space(backend, files.config.get("add_prefix_space"))
        return _Found(backend, frames=True)
    vocab, merges = files.directory / "vocab.json", files.directory / "merges.txt"
    if vocab.is_file() and merges.is_file():
        return _load_vocab_and_merges(vocab, merges, bool(files.config.get("add_prefix_space")))
    pieces = files.directory / "spiece.model"
    if pieces.is_file():
        extra_ids = files.config.get("extra_ids", DEFAULT_EXTRA_IDS)
        model = read_model_file(pieces)
        backend = _build(lambda: unigram_backend(model, extra_ids), f"{pieces} is corrupt")
        return _Found(backend, _SENTENCEPIECE_ROLES, add_eos=True)  # T5 ends texts with eos
    found = _merged(files.directory / "tokenizer.model") or _mistral_backend(files.directory)
    if found is None:
        others = "vocab.json with merges.txt, tokenizer.model and tekken.json"
        raise TokenizerError(f"{path} is missing (and so are {others}): the directory has no tokenizer")
    return found


def _merged(path: Path, mistral: bool = False) -> _Found | None:
    """Of SentencePiece; None where there is no such file. mistral: whether it is one of Mistral's"""
    if not path.is_file():
        return None
    model = read_model_file(path)
    make = merged_backend if model.merges else lambda model: unigram_backend(model, 0)
    backend = _build(lambda: make(model), f"{path} is corrupt")
    found = {
        role: next((token for token in names if backend.token_to_id(token) is not None), "")
        for role, names in _MERGED_ROLES.items()
    }
    return _Found(backend, found, add_bos=found["bos_token"] != "", mistral_file=path if mistral else None)


def _mistral_backend(directory: Path) -> _Found | None:
    """Of files that none but Mistral's models have, the newest."""
    tekken = directory / "tekken.json"
    if tekken.is_file():
        backend = _build(lambda: tekken_backend(tekken), f"{tekken} is corrupt")
        roles = {role: names[0] for role, names in _MERGED_ROLES.items()}
        return _Found(backend, roles, add_bos=True, mistral_file=tekken)
    versions = sorted(directory.glob("tokenizer.model.v*"))
    return _merged(versions[-1], mistral=True) if versions else None


def _load_vocab_and_merges(vocab_path: Path, merges_path: Path, prefix_space: bool) -> _Found:
    """Byte-level BPE as GPT-2 and OPT carry it."""
    vocab = _read_object(vocab_path)
    merges = _read_merges(merges_path)
    missing = next((t for left, right in merges for t in (left, right, left + right) if t not in vocab), None)
    if missing is not None:
        raise TokenizerError(f"{vocab_path} and {merges_path.name} do not fit together: no token {missing!r}")
    model = _build(lambda: models.BPE(vocab=vocab, merges=merges), f"{vocab_path} is corrupt")
    backend = Backend(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    backend.decoder = decoders.ByteLevel()
    roles = dict.fromkeys(("bos_token", "eos_token", "unk_token"), _LEGACY_TOKEN) if _LEGACY_TOKEN in vocab else {}
    return _Found(backend, roles)


def _build(make: Callable[[], Built], wrong: str) -> Built:
    """Of what files say. tokenizers raises bare Exception, or a panic of its own that is no Exception at all."""
    try:
        return make()
    except (KeyboardInterrupt, SystemExit, TokenizerError):
        raise
    except BaseException as error:
        raise TokenizerError(f"{wrong}: {type(error).__name__}: {cut(str(error))}") from None


def _read_merges(path: Path) -> list[tuple[str, str]]:
    merges = []
    for number, line in enumerate(_read_text(path).split("\n"), start=1):
        if line.strip() and not line.startswith("#version"):
            left, _, right = line.rstrip("\r").partition(" ")
            if not left or not right or " " in right:
                raise TokenizerError(f"{path} is corrupt: line {number} must hold two tokens")
            merges.append((left, right))
    return merges


def _set_prefix_space(backend: Backend, wanted: Any) -> None:
    """tokenizer_config.json may overrule what tokenizer.json says."""
    step = backend.pre_tokenizer
    if isinstance(wanted, bool) and isinstance(step, pre_tokenizers.ByteLevel) and step.add_prefix_space != wanted:
        step.add_prefix_space = wanted
        backend.pre_tokenizer = step


def _add_tokens(backend: Backend, files: _Files) -> None:
    """Tokens that only tokenizer_config.json or added_tokens.json name, in the order of their ids."""
    listed = {int(token_id): _as_added(token) for token_id, token in _added_decoder(files).items()}
    known = {repr(token) for token in backend.get_added_tokens_decoder().values()}
    for _, token in sorted(listed.items()):
        if repr(token) not in known:
            backend.add_tokens([token])
    wrong = [f"{t.content!r} = {i}" for i, t in listed.items() if backend.token_to_id(t.content) != i]
    if wrong:
        path = files.directory / "tokenizer_config.json"
        raise TokenizerError(f"{path}: added tokens whose ids do not fit the vocabulary: {cut(', '.join(wrong[:4]))}")


def _added_decoder(files: _Files) -> Mapping[str, Any]:
    decoder = files.config.get("added_tokens_decoder")
    if isinstance(decoder, Mapping):
        return decoder
    return {token_id: token for token, token_id in _read_object(files.directory / "added_tokens.json").items()}


def _as_added(token: Any) -> AddedToken:
    if isinstance(token, str):
        return AddedToken(token)
    flags = {name: bool(token.get(name, False)) for name in ("single_word", "lstrip", "rstrip", "special")}
    return AddedToken(token["content"], normalized=bool(token.get("normalized", not flags["special"])), **flags)


def _special_tokens(found: _Found, files: _Files) -> SpecialTokens:
    bos, eos, pad, unk = (_content(files.setting(name)) or found.roles.get(name, "") for name in _ROLES)
    others = [_content(files.setting(name)) for name in _OTHER_ROLES]
    others += _contents(files.setting("additional_special_tokens"))
    others += _contents(files.config.get("extra_special_tokens"))
    extra = {"additional_special_tokens": [token for token in others if token]}
    plain = SpecialTokens(bos, eos, pad, unk, extra=extra)
    register_special(found.backend, plain)  # gives an id to tokens that have none
    return _with_bos_eos(found, files, plain)


def _with_bos_eos(found: _Found, files: _Files, plain: SpecialTokens) -> SpecialTokens:
    """tokenizer.json decides whether bos and eos are added; tokenizer_config.json only where there is none."""
    backend, generation_eos = found.backend, _ids(files.generation.get("eos_token_id"))
    bos_id = _token_id(backend, plain.bos_token, _ids(files.generation.get("bos_token_id")))
    eos_id = _token_id(backend, plain.eos_token, generation_eos)
    if found.frames:
        around = backend.encode("").ids
        add_bos = around[:1] == [bos_id]
        add_eos = around[add_bos:][-1:] == [eos_id]
    else:
        add_bos = bool(files.config.get("add_bos_token", found.add_bos)) and plain.bos_token != ""
        add_eos = bool(files.config.get("add_eos_token", found.add_eos)) and plain.eos_token != ""
    extra = {**plain.extra, "eos_token_ids": generation_eos}
    return replace(plain, bos_id=bos_id, eos_id=eos_id, add_bos=add_bos, add_eos=add_eos, extra=extra)


def _token_id(backend: Backend, token: str, fallback: list[int]) -> int:
    found = backend.token_to_id(token) if token else None
    return found if found is not None else (fallback or [-1])[0]


def _chat_templates(files: _Files) -> dict[str, str]:
    """Name -> template; the one without a name is "default". Files of their own overrule tokenizer_config.json."""
    said = files.config.get("chat_template")
    templates: dict[str, str] = {}
    if isinstance(said, str):
        templates["default"] = said
    elif isinstance(said, list):
        templates |= {str(entry["name"]): str(entry["template"]) for entry in said}
    elif isinstance(said, Mapping):
        templates |= {str(name): str(text) for name, text in said.items()}
    legacy = _read_object(files.directory / "chat_template.json").get("chat_template")
    if isinstance(legacy, str):
        templates["default"] = legacy
    for path in sorted((files.directory / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = _read_text(path)
    own = files.directory / "chat_template.jinja"
    if own.is_file():
        templates["default"] = _read_text(own)
    return templates


def _content(token: Any) -> str:
    """A token as the files write it: a string, an object with `content`, or nothing."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _contents(tokens: Any) -> list[str]:
    if isinstance(tokens, Mapping):
        tokens = list(tokens.values())
    return [_content(token) for token in tokens] if isinstance(tokens, list) else []


def _ids(value: Any) -> list[int]:
    if isinstance(value, list):
        return [int(item) for item in value]
    return [value] if isinstance(value, int) else []


def _max_length(value: Any) -> int:
    return int(min(value, NO_MAX_LENGTH)) if isinstance(value, int | float) and value > 0 else NO_MAX_LENGTH


def _read_text(path: Path) -> str:
    try:
        return read_bytes(path, _MOST_BYTES, TokenizerError).decode()
    except UnicodeError as error:
        raise TokenizerError(f"{path}: cannot be read: {error}") from None


def _read_object(path: Path) -> dict[str, Any]:
    """{} when the file is absent."""
    return read_object(path, MOST_TABLE_BYTES, TokenizerError) if path.exists() else {}
