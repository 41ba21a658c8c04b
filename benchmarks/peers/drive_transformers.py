"""transformers' `generate` on batches padded on the left; a batch runs until its longest answer is done.

Options: dtype.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from benchmarks.peers.driver import Run, drive
from benchmarks.peers.workloads import Request

_PADDING = 2
_MOST_ROWS = 64


def open_engine(args: argparse.Namespace) -> tuple[Run, dict[str, str]]:
    import torch
    import transformers

    torch.set_num_threads(args.threads)
    dtype = getattr(torch, args.options["dtype"])
    model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype, attn_implementation="sdpa")
    model.eval()

    def generate(batch: Sequence[Request]) -> None:
        width = max(len(request.prompt) for request in batch)
        longest = max(request.num_output for request in batch)
        ids = torch.full((len(batch), width), _PADDING)
        mask = torch.zeros((len(batch), width), dtype=torch.long)
        for row, request in enumerate(batch):
            ids[row, width - len(request.prompt) :] = torch.tensor(request.prompt)
            mask[row, width - len(request.prompt) :] = 1
        lengths = {"max_new_tokens": longest, "min_new_tokens": longest}
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=mask, do_sample=False, pad_token_id=_PADDING, **lengths)
        assert out.shape[1] == width + longest

    def run(work: Sequence[Request]) -> list[int]:
        for start in range(0, len(work), _MOST_ROWS):
            generate(work[start : start + _MOST_ROWS])
        return [request.num_output for request in work]  # tokens past a request's own length do not count

    return run, {"transformers": transformers.__version__, "torch": torch.__version__}


if __name__ == "__main__":
    drive("transformers", open_engine)
