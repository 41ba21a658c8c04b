"""How byte-level BPE cuts text into words before it merges, by the names of `tokenizer.ggml.pre`."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"
_WORDS = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*" + _TAIL


@dataclass(frozen=True, slots=True)
class Split:
    """How byte-level BPE cuts text into words before it merges."""

    pattern: str = ""  # "" = GPT-2's own
    single_digits: bool = False  # every numeral is a word, before the pattern applies
    nfc: bool = False
    whole_words: bool = False  # a word that is in the vocabulary is one token, whatever the merges say
    add_bos: bool = False  # where the file does not say
    falcon: bool = False  # punctuation first, then GPT-2's words, then numerals three by three

    def pre_tokenizer(self, prefix_space: bool) -> pre_tokenizers.PreTokenizer:
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space, use_regex=not self.pattern)
        if self.falcon:
            numerals = pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")
            apart = (pre_tokenizers.Punctuation("contiguous"), to_bytes, pre_tokenizers.Digits(), numerals)
            return pre_tokenizers.Sequence(list(apart))
        if self.pattern:
            return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(self.pattern), "isolated"), to_bytes])
        if self.single_digits:
            return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), to_bytes])
        return to_bytes


_GPT2 = Split()
_DIGITS = Split(single_digits=True)
_LLAMA3 = Split(_WORDS % r"\p{N}{1,3}", whole_words=True, add_bos=True)
_CL100K = Split(_WORDS % r"\p{N}{1,3}")
_STABLELM2 = Split(_WORDS % r"\p{N}")
_BLOOM = Split(r" ?[^(\s|[.,!?…。，、।۔،])]+")
_QWEN2 = Split(_WORDS % r"\p{N}", nfc=True)
_TEKKEN = Split(_CASED % ("", "") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _TAIL, whole_words=True, add_bos=True)
_O200K = Split(_CASED % (f"{_CONTRACTIONS}?", f"{_CONTRACTIONS}?") + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _TAIL)

SPLITS: dict[str, Split] = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "roberta-bpe": _GPT2,
    "phi-2": _GPT2,
    "mpt": _GPT2,
    "exaone4": _GPT2,
    "olmo": _GPT2,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "command-r": _DIGITS,
    "exaone": _DIGITS,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "falcon-h1": _LLAMA3,
    "lfm2": _LLAMA3,
    "pixtral": _LLAMA3,
    "dbrx": _CL100K,
    "glm4": _CL100K,
    "chatglm-bpe": _CL100K,
    "smaug-bpe": _CL100K,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": _TEKKEN,
    "gpt-4o": _O200K,
    "llama4": _O200K,
    "stablelm2": _STABLELM2,
    "bloom": _BLOOM,
    "falcon": Split(falcon=True),
}
