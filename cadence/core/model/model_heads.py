"""What follows a model's last norm, by the name of its architecture.

| name | decoder | head |
|---|---|---|
| LlamaForCausalLM | Llama | logits |
| LlamaModel, Gemma3TextModel | Llama, Gemma 3 | none |
| LlamaForSequenceClassification | Llama | scores, of the last token |
| LlamaForTokenClassification | Llama | scores, of every token |
| Qwen2ForRewardModel | Qwen 2 | reward: two maps, of every token |
| Qwen2ForProcessRewardModel | Qwen 2 | the same, of every step |

Every decoder may have every head but the last two. An encoder's class has a head of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from cadence.core.model.architectures import ARCHITECTURES


class ModelHead(Enum):
    LOGITS = "logits"  # it writes tokens
    NONE = "none"  # hidden states are all it gives
    SCORES = "scores"
    TOKEN_SCORES = "token_scores"
    REWARD = "reward"
    PROCESS_REWARD = "process_reward"
    TOKEN_LOGITS = "token_logits"  # logits as scores: of some tokens of the vocabulary
    OWN = "own"  # as the model's class has it

    @property
    def makes_scores(self) -> bool:
        return self not in (ModelHead.LOGITS, ModelHead.NONE, ModelHead.OWN)


@dataclass(frozen=True, slots=True)
class ModelClass:
    family: str  # a name in ARCHITECTURES: the class that is built
    head: ModelHead


_HEADS = {
    "ForSequenceClassification": ModelHead.SCORES,
    "ForTokenClassification": ModelHead.TOKEN_SCORES,
    "Model": ModelHead.NONE,
}
_WRITES = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "MTModel")
_STEMS = {"Gemma3ForCausalLM": "Gemma3Text"}  # where the name of a decoder without a head begins otherwise


def _stem(name: str) -> str:
    return _STEMS.get(name, name.removesuffix("ForCausalLM").removesuffix("LMHeadModel"))


def classes_of(name: str) -> dict[str, ModelClass]:
    """By architecture, all that a class can be built as: itself, and a decoder with other heads."""
    own = {name: ModelClass(name, ModelHead.LOGITS if name.endswith(_WRITES) else ModelHead.OWN)}
    if not name.endswith(_WRITES[:2]):
        return own
    return {_stem(name) + end: ModelClass(name, head) for end, head in _HEADS.items()} | own


def _known() -> dict[str, ModelClass]:
    found: dict[str, ModelClass] = {}
    for name in ARCHITECTURES:
        found = {**classes_of(name), **found}
    reward = {
        "Qwen2ForRewardModel": ModelClass("Qwen2ForCausalLM", ModelHead.REWARD),
        "Qwen2ForProcessRewardModel": ModelClass("Qwen2ForCausalLM", ModelHead.PROCESS_REWARD),
    }
    return found | {name: classes_of(name)[name] for name in ARCHITECTURES} | reward


MODEL_CLASSES = _known()  # by architecture, as Hugging Face names them: all that can be run
