"""The real model of the tests: SmolLM2-135M-Instruct, as Cadence finds it and as transformers runs it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from cadence.config.hf import load_hf_config
from cadence.config.reference import find_model
from cadence.gguf import open_weights


@cache
def smollm2_path() -> Path:
    """The GGUF file, fetched once into the cache."""
    gguf = find_model("smollm2").gguf
    assert gguf is not None
    return gguf


@cache
def hf_reference() -> Any:
    """The transformers model in float32, one per test session.

    Its weights come through our GGUF reader, which takes a fiftieth of the time of transformers' own;
    tests/gguf/test_weights.py holds the two equal, bit for bit, on this very file.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    hf = load_hf_config(find_model("smollm2"))
    weights = open_weights(smollm2_path(), hf.raw)
    settings = {key: value for key, value in hf.raw.items() if key not in ("model_type", "partial_rotary_factor")}
    config = AutoConfig.for_model(hf["model_type"], **settings)
    with no_init_weights():
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    missing, unexpected = model.load_state_dict({name: weights.load(name) for name in weights.names()}, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])  # tied to the embedding
    model.tie_weights()
    return model.eval()


def read_by_transformers(path: Path) -> tuple[Any, dict[str, Any]]:
    """Config and tensors as `from_pretrained(gguf_file=...)` gets them; that call itself needs `accelerate`."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(config)
    read = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=skeleton, torch_dtype=torch.float32)
    return config, read["tensors"]


@cache
def hf_tokenizer() -> Any:
    """transformers' reading of the tokenizer in the file; needs the `gguf` package."""
    from transformers import AutoTokenizer

    path = smollm2_path()
    return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
