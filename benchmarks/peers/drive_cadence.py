"""Cadence, through `LLM`. Options are those of `LLM`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from benchmarks.peers.driver import Run, drive
from benchmarks.peers.workloads import Request


def open_engine(args: argparse.Namespace) -> tuple[Run, dict[str, str]]:
    import cadence
    from cadence import LLM, SamplingParams

    options = {"device": "cpu", "max_model_len": 2048, "enable_prefix_caching": False, "cpu_threads": args.threads}
    llm = LLM(args.model, **{**options, **args.options})

    def run(work: Sequence[Request]) -> list[int]:
        params = [
            SamplingParams(temperature=0, max_tokens=request.num_output, ignore_eos=True, detokenize=False)
            for request in work
        ]
        prompts = [{"prompt_token_ids": request.prompt} for request in work]
        outputs = llm.generate(prompts, params, use_tqdm=False)
        return [len(output.outputs[0].token_ids) for output in outputs]

    return run, {"cadence": cadence.__version__}


if __name__ == "__main__":
    drive("cadence", open_engine)
