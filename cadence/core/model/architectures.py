"""The architectures that can be run, and what to say of those that cannot."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

MOST_LAYERS = 1024  # more than any model has
MOST_EXPERTS = 1024  # of a layer
_MOST_NAMED = 24  # names in one message

# Names as Hugging Face has them -> the module of `cadence.models` they are in, and their class if it has another name.
_DECODERS = {
    "BambaForCausalLM": "states.bamba",
    "BloomForCausalLM": "decoders.bloom",
    "CodeGenForCausalLM": "decoders.codegen",
    "Cohere2ForCausalLM": "decoders.cohere",
    "CohereForCausalLM": "decoders.cohere",
    "Exaone4ForCausalLM": "decoders.exaone4",
    "FalconForCausalLM": "decoders.falcon",
    "FalconH1ForCausalLM": "states.falcon_h1",
    "FalconMambaForCausalLM": "states.mamba",
    "GPT2LMHeadModel": "gpt2",
    "GPTJForCausalLM": "decoders.gptj",
    "GPTNeoXForCausalLM": "decoders.gpt_neox",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "GemmaForCausalLM": "decoders.gemma1",
    "Glm4ForCausalLM": "decoders.glm",
    "GlmForCausalLM": "decoders.glm",
    "GraniteForCausalLM": "decoders.granite",
    "GraniteMoeForCausalLM": "decoders.granite_moe",
    "GraniteMoeHybridForCausalLM": "states.granite_hybrid",
    "JambaForCausalLM": "states.jamba",
    "Lfm2ForCausalLM": "states.lfm2",
    "Llama4ForCausalLM": "decoders.llama4",
    "Llama4ForConditionalGeneration": "decoders.llama4:Llama4ForCausalLM",
    "LlamaForCausalLM": "llama",
    "Mamba2ForCausalLM": "states.mamba2",
    "MambaForCausalLM": "states.mamba",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "MptForCausalLM": "decoders.mpt",
    "OPTForCausalLM": "opt",
    "Olmo2ForCausalLM": "decoders.olmo2",
    "Olmo3ForCausalLM": "decoders.olmo2",
    "Phi3ForCausalLM": "phi3",
    "PhiForCausalLM": "decoders.phi",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "Qwen3NextForCausalLM": "states.qwen3_next",
    "SmolLM3ForCausalLM": "smollm3",
    "StableLmForCausalLM": "decoders.stablelm",
    "Starcoder2ForCausalLM": "decoders.starcoder2",
}

# Tokens see each other both ways, and no text is generated. One that was trained to fill in words is used without that.
ENCODERS = {
    "BertForMaskedLM": "encoders.bert:BertModel",
    "BertForSequenceClassification": "encoders.bert",
    "BertForTokenClassification": "encoders.bert",
    "BertModel": "encoders.bert",
    "CamembertForMaskedLM": "encoders.roberta:RobertaModel",
    "CamembertForSequenceClassification": "encoders.roberta:RobertaForSequenceClassification",
    "CamembertForTokenClassification": "encoders.roberta:RobertaForTokenClassification",
    "CamembertModel": "encoders.roberta:RobertaModel",
    "DistilBertForMaskedLM": "encoders.distilbert:DistilBertModel",
    "DistilBertForSequenceClassification": "encoders.distilbert",
    "DistilBertForTokenClassification": "encoders.distilbert",
    "DistilBertModel": "encoders.distilbert",
    "MPNetForMaskedLM": "encoders.mpnet:MPNetModel",
    "MPNetForSequenceClassification": "encoders.mpnet",
    "MPNetForTokenClassification": "encoders.mpnet",
    "MPNetModel": "encoders.mpnet",
    "ModernBertForMaskedLM": "encoders.modernbert:ModernBertModel",
    "ModernBertForSequenceClassification": "encoders.modernbert",
    "ModernBertForTokenClassification": "encoders.modernbert",
    "ModernBertModel": "encoders.modernbert",
    "NomicBertModel": "encoders.nomic",
    "RobertaForMaskedLM": "encoders.roberta:RobertaModel",
    "RobertaForSequenceClassification": "encoders.roberta",
    "RobertaForTokenClassification": "encoders.roberta",
    "RobertaModel": "encoders.roberta",
    "XLMRobertaForMaskedLM": "encoders.roberta:RobertaModel",
    "XLMRobertaForSequenceClassification": "encoders.roberta:RobertaForSequenceClassification",
    "XLMRobertaForTokenClassification": "encoders.roberta:RobertaForTokenClassification",
    "XLMRobertaModel": "encoders.roberta:RobertaModel",
}

# An encoder reads a text or sound, a decoder writes.
ENCODER_DECODERS = {
    "BartForConditionalGeneration": "seq2seq.bart",
    "MBartForConditionalGeneration": "seq2seq.bart",
    "MT5ForConditionalGeneration": "seq2seq.t5",
    "MarianMTModel": "seq2seq.marian",
    "T5ForConditionalGeneration": "seq2seq.t5",
    "WhisperForConditionalGeneration": "seq2seq.whisper",
}

# A tower sees or hears, a decoder writes.
SEEING = {
    "Gemma3ForConditionalGeneration": "vision.gemma3",
    "Idefics3ForConditionalGeneration": "vision.idefics3",
    "LlavaForConditionalGeneration": "vision.llava",
    "LlavaNextForConditionalGeneration": "vision.llava_next",
    "Qwen2AudioForConditionalGeneration": "vision.qwen_audio",
    "Qwen2VLForConditionalGeneration": "vision.qwen_vl",
    "Qwen2_5_VLForConditionalGeneration": "vision.qwen_vl",
    "SmolVLMForConditionalGeneration": "vision.idefics3:Idefics3ForConditionalGeneration",
}

ARCHITECTURES = {**_DECODERS, **ENCODERS, **ENCODER_DECODERS, **SEEING}


@dataclass(frozen=True, slots=True)
class Family:
    """Architectures that are not supported, by how their names begin (Hugging Face's or GGUF's, in lower case)."""

    begins: str  # a regular expression
    nature: str  # what sets them apart
    relatives: tuple[str, ...]  # supported ones it descends from or is near to


_LLAMA, _MISTRAL, _PHI = ("LlamaForCausalLM",), ("MistralForCausalLM",), ("Phi3ForCausalLM",)
_QWEN, _GEMMA = ("Qwen2ForCausalLM", "Qwen3ForCausalLM"), ("Gemma2ForCausalLM", "Gemma3ForCausalLM")
_BART = ("BartForConditionalGeneration",)
_STATES = ("Mamba2ForCausalLM", "BambaForCausalLM")
_EXPERTS = "experts or latent attention"
_GPT = ("GPT2LMHeadModel", "OPTForCausalLM")

UNSUPPORTED = (  # the first that fits counts
    Family(r"(lfm2)", "short convolutions beside others", ("Lfm2ForCausalLM",)),
    Family(r"(\w*mamba|jamba|zamba|rwkv|nemotronh|plamo2|falconh1)", "states of another form", _STATES),
    Family(r"(umt5|led|longt5|pegasus|m2m|nllb|blenderbot|prophetnet|speech)", "an encoder of another form", _BART),
    Family(r"(t5|mt5|bart|mbart|whisper|marian)", "another head on an encoder and a decoder", _BART),
    Family(r"(\w*bert|roberta|electra|xlm|mpnet|nomic|jina)", "an encoder of another form", ("BertModel",)),
    Family(r"qwen\d*(_?\d)?_?(vl|audio|omni)", "Qwen with images or sound", _QWEN),
    Family(r"(qwen\d*_?moe|qwen3_?next|qwen3_?5)", "Qwen with experts or other attention", _QWEN),
    Family(r"(qwen|qwq|marco)", "another generation of Qwen", _QWEN),
    Family(r"(gemma3n|gemma4|gemma|recurrentgemma|t5gemma|paligemma)", "another generation of Gemma", _GEMMA),
    Family(r"(mixtral|ministral|mistral|pixtral|voxtral)", "Mistral with images or of another form", _MISTRAL),
    Family(r"phi", "another generation of Phi", _PHI),
    Family(r"(gpt_?oss)", "experts and attention sinks", ()),
    Family(r"(gpt|bloom|falcon|mpt|codegen|starcoder|santacoder|stablelm)", "a descendant of GPT", _GPT),
    Family(r"(deepseek|kimi|glm4_?moe|minimax|dots|ernie|longcat|bailing|hunyuan|arctic|dbrx|grok)", _EXPERTS, _LLAMA),
    Family(r"(mllama|llava|internvl|idefics|smolvlm|aria|ovis|molmo)", "Llama with experts or images", _LLAMA),
    Family(
        r"(llama|yi|aquila|internlm|baichuan|olmo|granite|cohere|command|exaone|minicpm|glm|chatglm|smollm|solar|"
        r"nemotron|decilm|orion|xverse|apertus|arcee|seed|telechat|jais|persimmon|teleflm|step|hyperclova)",
        "a descendant of Llama with changes of its own",
        _LLAMA,
    ),
)  # fmt: skip


def unsupported(architecture: str, supported: Iterable[str] = ARCHITECTURES) -> str:
    """The message for an architecture that is not supported: what it is, and which related ones are."""
    family = next((family for family in UNSUPPORTED if re.match(family.begins, architecture.lower())), None)
    sentence = f"architecture {architecture!r} is not supported"
    if family is not None:
        closest = " and ".join(family.relatives)
        sentence += f" ({family.nature}; {f'closest: {closest}' if closest else 'nothing related is supported'})"
    names = sorted(supported)
    known = f"supported: {', '.join(names)}" if len(names) <= _MOST_NAMED else "`cadence models` lists those that are"
    return f"{sentence}; {known}"
