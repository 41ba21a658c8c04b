"""What sentence-transformers' files say of a model: which modules follow it, and which texts go before prompts.

| file | what is read |
|---|---|
| `modules.json` | the modules, in order, each with a folder of its own |
| `1_Pooling/config.json` | how hidden states become one embedding |
| `2_Dense/config.json` | a linear map of it; its weights lie beside |
| `config_sentence_transformers.json` | prompts by name, the default among them |
| `sentence_bert_config.json` | the longest text, and whether texts are read in lower case |
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cadence.config.files.field_types import Boolean, FieldType, Integer, Nullable, String
from cadence.config.files.fields import wrong
from cadence.config.files.json_file import MOST_CONFIG_BYTES, read_list, read_object
from cadence.core.errors import ModelFileError
from cadence.core.pooled.pooling import CLS, LAST, MEAN
from cadence.core.shown import shown

logger = logging.getLogger("cadence.config")

_MOST_MODULES = 16
_MOST_PROMPTS = 1024
_MOST_PROMPT_CHARS = 1 << 16
_SIZE = Integer(1, 2**24)
_MODES = {  # the names of older files, and of newer ones
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
_POOLINGS = {"cls": CLS, "mean": MEAN, "lasttoken": LAST}
_MODULES = ("Transformer", "Pooling", "Dense", "Normalize", "Dropout")  # the last one changes nothing
_LENGTH_FILES = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)


@dataclass(frozen=True, slots=True)
class DenseModule:
    """x [n, inputs] -> activation(W x + b), [n, outputs]"""

    folder: str  # "2_Dense", which holds its weights
    inputs: int
    outputs: int
    bias: bool
    activation: str  # identity | tanh | gelu | relu


@dataclass(frozen=True, slots=True)
class SentenceModules:
    pooling: str = ""  # last | cls | mean; "" = there are no such files
    normalize: bool = False
    dense: tuple[DenseModule, ...] = ()
    prompts: tuple[tuple[str, str], ...] = ()  # by name: what goes before a text
    default_prompt: str = ""  # the name of one of them; "" = none
    max_length: int = 0  # tokens; 0 = not said
    lower_case: bool = False  # texts are tokenised in lower case
    similarity: str = "cosine"  # of two embeddings: cosine | dot | euclidean | manhattan

    @property
    def found(self) -> bool:
        return bool(self.pooling)


NO_MODULES = SentenceModules()


def read_modules(directory: Path) -> SentenceModules:
    """Of a folder without such files, `NO_MODULES`."""
    if not (directory / "modules.json").exists():
        return NO_MODULES
    listed = _listed(directory)
    normalize, dense, pooling, with_prompt = False, [], "", True
    for kind, folder in listed:
        if kind == "Pooling":
            pooling, with_prompt = _pooling(directory / folder / "config.json")
        elif kind == "Dense":
            dense.append(_dense(directory / folder / "config.json", folder))
        elif kind == "Normalize":
            normalize = True
    if not pooling:
        raise ModelFileError(f"{directory / 'modules.json'}: no module of type Pooling", "modules.json")
    prompts, default, similarity = _prompts(directory / "config_sentence_transformers.json")
    if prompts and not with_prompt:
        logger.warning("%s: prompts are not used: the model leaves them out of its mean", directory)
        prompts, default = (), ""
    max_length, lower_case = _lengths(directory)
    return SentenceModules(
        pooling=pooling,
        normalize=normalize,
        dense=tuple(dense),
        prompts=prompts,
        default_prompt=default,
        max_length=max_length,
        lower_case=lower_case,
        similarity=similarity,
    )


def _listed(directory: Path) -> list[tuple[str, str]]:
    """(type, folder) of each module, in order."""
    path = directory / "modules.json"
    modules = read_list(path, MOST_CONFIG_BYTES, _error)
    if len(modules) > _MOST_MODULES:
        raise ModelFileError(f"{path}: {len(modules)} modules, at most {_MOST_MODULES}", "modules.json")
    found = []
    for module in modules:
        section = module if isinstance(module, dict) else {}
        kind = _field(section, path, "type", String(), "").rpartition(".")[2]
        folder = _field(section, path, "path", String(), "")
        if folder and (Path(folder).name != folder or folder == ".."):
            raise wrong(path, "path", "the name of a folder beside this file", folder)
        if kind not in _MODULES:
            raise ModelFileError(f"{path}: modules of type {shown(kind)} are not read", "modules.json")
        found.append((kind, folder))
    return found


def _pooling(path: Path) -> tuple[str, bool]:
    """How, and whether a prompt's tokens count."""
    raw = read_object(path, MOST_CONFIG_BYTES, _error)
    named = raw.get("pooling_mode")
    modes = [named] if isinstance(named, str) else named if isinstance(named, list) else _older_modes(raw, path)
    mode = modes[0] if len(modes) == 1 else modes
    if not isinstance(mode, str) or mode not in _POOLINGS:
        raise wrong(path, "pooling_mode", f"one of {', '.join(_POOLINGS)}", mode)
    return _POOLINGS[mode], _field(raw, path, "include_prompt", Boolean(), True)


def _older_modes(raw: dict[str, Any], path: Path) -> list[str]:
    modes = [mode for name, mode in _MODES.items() if _field(raw, path, name, Nullable(Boolean()), False)]
    return modes or ["mean"]


def _dense(path: Path, folder: str) -> DenseModule:
    raw = read_object(path, MOST_CONFIG_BYTES, _error)
    name = _field(raw, path, "activation_function", String(), "torch.nn.modules.activation.Tanh")
    activation = name.rpartition(".")[2].lower()
    if activation not in ("identity", "tanh", "gelu", "relu"):
        raise wrong(path, "activation_function", "Identity, Tanh, GELU or ReLU", name)
    return DenseModule(
        folder=folder,
        inputs=_field(raw, path, "in_features", _SIZE, None),
        outputs=_field(raw, path, "out_features", _SIZE, None),
        bias=_field(raw, path, "bias", Boolean(), True),
        activation=activation,
    )


def _prompts(path: Path) -> tuple[tuple[tuple[str, str], ...], str, str]:
    """Prompts by name, the name of the default one, and how embeddings are compared."""
    if not path.exists():
        return (), "", "cosine"
    raw = read_object(path, MOST_CONFIG_BYTES, _error)
    prompts = raw.get("prompts") or {}
    if not isinstance(prompts, dict) or len(prompts) > _MOST_PROMPTS:
        raise wrong(path, "prompts", f"an object of at most {_MOST_PROMPTS} texts", prompts)
    for name, text in prompts.items():
        if not isinstance(text, str) or len(text) > _MOST_PROMPT_CHARS:
            raise wrong(path, f"prompts.{name[:64]}", f"a text of at most {_MOST_PROMPT_CHARS} characters", text)
    default = _field(raw, path, "default_prompt_name", Nullable(String()), None) or ""
    if default and default not in prompts:
        raise wrong(path, "default_prompt_name", "one of the prompts", default)
    similarity = _field(raw, path, "similarity_fn_name", Nullable(String()), None) or "cosine"
    return tuple(prompts.items()), default, similarity


def _lengths(directory: Path) -> tuple[int, bool]:
    """The longest text, and whether texts are read in lower case."""
    path = next((directory / name for name in _LENGTH_FILES if (directory / name).exists()), None)
    if path is None:
        return 0, False
    raw = read_object(path, MOST_CONFIG_BYTES, _error)
    lower_case = _field(raw, path, "do_lower_case", Nullable(Boolean()), False)
    return _field(raw, path, "max_seq_length", Nullable(_SIZE), None) or 0, bool(lower_case)


def _field(raw: dict[str, Any], path: Path, name: str, kind: FieldType, default: Any) -> Any:
    value = raw.get(name, default)
    try:
        return kind.read(value)
    except (ValueError, OverflowError):
        raise wrong(path, name, kind.expected, value) from None


def _error(message: str) -> ModelFileError:
    return ModelFileError(message, "model")
