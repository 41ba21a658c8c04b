"""transformers as the oracle: greedy tokens, and logprobs of a given token sequence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch


def load_oracle(directory: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()


@torch.inference_mode()
def greedy(model: Any, prompt: list[int], num_tokens: int) -> list[int]:
    """Greedy continuation, end-of-sequence ignored."""
    ids = torch.tensor([prompt])
    output = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=num_tokens,
        min_new_tokens=num_tokens,
        eos_token_id=None,
        pad_token_id=0,
        repetition_penalty=1.0,
    )
    return output[0, len(prompt) :].tolist()


@torch.inference_mode()
def likeliest(model: Any, prompt: list[int], tokens: list[int]) -> list[int]:
    """The model's own choice in place of each of `tokens`, given all before it. They are its greedy continuation of the
    prompt if and only if they equal these: one forward says so, where `greedy` takes one for each token."""
    sequence = torch.tensor([prompt + tokens])
    return model(sequence).logits[0, len(prompt) - 1 : -1].argmax(dim=-1).tolist()


@torch.inference_mode()
def logprobs(model: Any, tokens: list[int]) -> torch.Tensor:
    """[len(tokens), vocab] float32: line i is the distribution of token i + 1."""
    return torch.log_softmax(model(torch.tensor([tokens])).logits[0].float(), dim=-1)
