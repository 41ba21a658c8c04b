"""How much sooner text comes by how often drafts are right: a proposer that is told what comes, on a well-known shape.

    python -m benchmarks.acceptance [--shape llama-3.1-8b] [--batches 1,64] [--right 0.8,1,0] [--drafts 4] [--rounds 3]

Weights are random, but such that every token is followed by one of its own, whatever rounding does: a forward costs
what it costs, and drafts are right as often as asked. For shapes whose head is not their embedding, and weights that
are not packed. The engines run one after another; the best round of each counts. One JSON line each.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import describe_machine
from benchmarks.shapes import SHAPES, write_shape
from cadence import SamplingParams
from cadence.config.args import EngineArgs
from cadence.config.speculative import SpeculativeConfig
from cadence.device.probe import open_device
from cadence.engine.llm_engine import LLMEngine
from cadence.executor.factory import OpenExecutor, Processors, Resolve, device_caps, open_on
from cadence.executor.worker import worker
from cadence.kernels.interface.ops import Ops
from cadence.kernels.interface.row_ops import RowState, StepBatch
from cadence.models.decoder import DecoderLM
from cadence.speculate.proposer import Proposer

PROMPT = 128  # tokens
_load_model = worker.load_model


def next_token(token: Any, vocab_size: int) -> Any:
    """Of one, or of a tensor of them."""
    return (token * 7 + 3) % vocab_size


def load_chain(*args: Any) -> DecoderLM:
    """A model whose layers add nothing, and whose head names what follows the last token."""
    model = _load_model(*args)
    for layer in model.layers:
        for linear in (layer.attn.out, layer.mlp.down):
            linear.weight.values.zero_()
    table, head = model.embed.tokens.weight.values, model.lm_head.weight.values
    tokens = torch.arange(len(table), device=table.device)
    head[next_token(tokens, len(table))] = table
    return model


def said(prompt: list[int], out: int, vocab_size: int) -> list[int]:
    """What the model says after a prompt."""
    tokens = [prompt[-1]]
    for _ in range(out):
        tokens.append(next_token(tokens[-1], vocab_size))
    return tokens[1:]


class ChainProposer(Proposer):
    """Knows what comes, and says it with a given probability, which is decided by the position alone."""

    def __init__(self, vocab_size: int, num_tokens: int, most: torch.Tensor, right: torch.Tensor) -> None:
        """most [num_rows] int32, strided: drafts of a row; right [1] float32"""
        tokens, chain = torch.arange(vocab_size, device=most.device), []
        for _ in range(num_tokens):
            tokens = next_token(tokens, vocab_size)
            chain.append(tokens.int())
        self._chain = torch.stack(chain, dim=1)  # [vocab_size, num_tokens]
        self._ahead = torch.arange(num_tokens, device=most.device)
        self._most, self._right = most, right

    def propose(self, state: RowState, batch: StepBatch) -> None:
        rows = batch.rows.long()
        length = state.num_computed[rows].long() + 1
        may = (batch.line_start.diff() > 0) & (state.quiet[rows] == 0)
        count = torch.minimum(self._most[rows], state.max_len[rows] - 1 - length).clamp_(min=0) * may
        at = (length[:, None] + self._ahead).clamp_(max=state.tokens.shape[1] - 1)  # [R, num_tokens]
        drafts = self._chain[state.tokens[rows, length - 1].long()]
        wrong = (at * 0x9E3779B1 & 0xFFFF) >= self._right * 0x10000
        drafts = (drafts + wrong.int()) % len(self._chain)
        known = state.tokens[rows[:, None], at]
        state.tokens[rows[:, None], at] = torch.where(self._ahead < count[:, None], drafts, known)
        state.num_drafts[rows] = count.int()


class Bench:
    def __init__(self, asked: argparse.Namespace, folder: Path, device: str) -> None:
        self._asked = asked
        self._vocab_size = SHAPES[asked.shape]["vocab_size"]
        self._args = {
            "model": str(write_shape(asked.shape, folder)),
            "load_format": "dummy",
            "skip_tokenizer_init": True,
            "max_model_len": 1024,
            "max_num_seqs": max(asked.batches),
            "enable_prefix_caching": False,
            **asked.options,
        }
        self._right = torch.zeros(1, device=device)  # read by the proposer, also where it was recorded

    def open(self, drafting: bool) -> LLMEngine:
        drafts = {"method": "ngram", "num_speculative_tokens": self._asked.drafts}
        options = {"speculative_config": drafts} if drafting else {}
        factory = {"new_executor": self._open_executor} if drafting else {}
        return LLMEngine.from_engine_args(EngineArgs.from_options(**self._args, **options), **factory)

    def _open_executor(self, kind: str, resolve: Resolve, logits_processors: Processors) -> OpenExecutor:
        config = resolve(device_caps(kind))
        device = open_device(config.device.kind, config.device.cpu_threads)
        return open_on(device, config, logits_processors, self._new_proposer)

    def _new_proposer(self, asked: SpeculativeConfig, ops: Ops, most: torch.Tensor) -> ChainProposer:
        return ChainProposer(self._vocab_size, asked.num_tokens, most, self._right)

    def rounds(self, engine: LLMEngine, batch: int, right: float) -> tuple[list[float], float]:
        """Seconds of each round without its prompts, and tokens per forward of the last. What is compiled or recorded
        on the way counts in the first rounds, in the shorter ones too: of those the best is taken off."""
        seconds, firsts = [], []
        self._right.fill_(right)
        for seed in range(self._asked.rounds):
            draw = random.Random(seed)
            prompts = [[draw.randrange(100, self._vocab_size) for _ in range(PROMPT)] for _ in range(batch)]
            first, _ = self._run(engine, prompts, 1)
            whole, per_forward = self._run(engine, prompts, self._asked.out)
            seconds.append(whole)
            firsts.append(first)
        return [whole - min(firsts) for whole in seconds], per_forward

    def _run(self, engine: LLMEngine, prompts: list[list[int]], out: int) -> tuple[float, float]:
        params = SamplingParams(temperature=0, max_tokens=out, ignore_eos=True, detokenize=False)
        start = time.perf_counter()
        for index, prompt in enumerate(prompts):
            engine.add_request(str(index), prompt, params)
        outputs = []
        while engine.has_unfinished_requests():
            outputs += [output for output in engine.step() if output.finished]
        elapsed = time.perf_counter() - start
        for output in outputs:
            expected = said(list(output.prompt_token_ids or []), out, self._vocab_size)
            assert list(output.outputs[0].token_ids) == expected, "other tokens"
        stats = outputs[0].speculation
        forwards = out - stats.num_accepted
        return elapsed, out / max(forwards, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="llama-3.1-8b", choices=list(SHAPES))
    parser.add_argument("--batches", default=[1, 64], type=lambda text: [int(each) for each in text.split(",")])
    parser.add_argument("--right", default=[0.8, 1.0, 0.0], type=lambda text: [float(each) for each in text.split(",")])
    parser.add_argument("--drafts", type=int, default=4)
    parser.add_argument("--out", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--options", default={}, type=json.loads, help="further ones of the engines, as JSON")
    asked = parser.parse_args()
    worker.load_model = load_chain
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(json.dumps({"machine": describe_machine(), "shape": asked.shape, "drafts": asked.drafts}), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(asked, Path(folder), device)
        with bench.open(drafting=False) as plain:
            base = {batch: min(bench.rounds(plain, batch, 0.0)[0]) for batch in asked.batches}
        del plain
        gc.collect()
        with bench.open(drafting=True) as engine:
            for batch in asked.batches:
                for right in asked.right:
                    seconds, per_forward = bench.rounds(engine, batch, right)
                    line = {
                        "batch": batch,
                        "right": right,
                        "plain_tokens_per_second": round(batch * (asked.out - 1) / base[batch], 1),
                        "tokens_per_second": round(batch * (asked.out - 1) / min(seconds), 1),
                        "speedup": round(base[batch] / min(seconds), 3),
                        "speedup_by_round": [round(base[batch] / each, 3) for each in seconds],
                        "tokens_per_forward": round(per_forward, 2),
                    }
                    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
