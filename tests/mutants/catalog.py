"""Faults put into the code on purpose, at least one per room, each with the tests that must notice it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    name: str  # what goes wrong
    file: str  # below cadence/
    old: str  # stands there exactly once
    new: str
    tests: tuple[str, ...]  # below tests/, what is run until one fails


MUTANTS = (
    Mutant(
        "config: a context that linear rope scaling stretches is taken for the short one",
        "config/context_length.py",
        'return int(length * (scaling.get("factor") or 1.0))',
        "return length",
        ("config",),
    ),
    Mutant(
        "core: numbers of one array arrive as zeros in another process",
        "core/contract/codec.py",
        "np.frombuffer(data, dtype=dtype).reshape(shape)",
        "np.frombuffer(data, dtype=dtype).reshape(shape) * 0",
        ("core",),
    ),
    Mutant(
        "scheduler: an aborted request goes on",
        "scheduler/scheduler.py",
        "                self._end(request)\n                updates.append(update)",
        "                updates.append(update)",
        ("scheduler",),
    ),
    Mutant(
        "scheduler: a stop token is obeyed one token late",
        "scheduler/stop.py",
        "request.num_output_tokens >= rule.min_tokens",
        "request.num_output_tokens > rule.min_tokens + 1",
        ("scheduler",),
    ),
    Mutant(
        "scheduler: a step that comes to nothing loses the pictures that it was to encode",
        "scheduler/scheduler.py",
        "                feature.dropped(draft)\n",
        "                pass\n",
        ("scheduler",),
    ),
    Mutant(
        "KV cache: a prefix hit may cover the whole prompt",
        "scheduler/kv/manager.py",
        "limit = (len(tokens) - 1) // self.block_size",
        "limit = len(tokens) // self.block_size",
        ("scheduler",),
    ),
    Mutant(
        "KV cache: requests of two adapters share a prefix",
        "scheduler/kv/hashing.py",
        "    if adapter:\n",
        "    if adapter and not salt and not adapter:\n",
        ("scheduler", "lora", "e2e/test_lora.py"),
    ),
    Mutant(
        "runner: an appended block goes one place too far",
        "runner/state/blocks.py",
        "write(blocks.row, blocks.start, ",
        "write(blocks.row, blocks.start + 1, ",
        ("runner", "e2e/test_promise.py"),
    ),
    Mutant(
        "sample: the first output token counts as one of the prompt",
        "sample/penalties.py",
        "positions < prompt_lens[:, None], 1, _OUTPUT",
        "positions <= prompt_lens[:, None], 1, _OUTPUT",
        ("sample",),
    ),
    Mutant(
        "sample: top_k keeps one token too many",
        "sample/filters.py",
        "ranks >= self._top_k[rows, None]",
        "ranks > self._top_k[rows, None]",
        ("sample",),
    ),
    Mutant(
        "speculation: a draft that was not chosen is kept",
        "kernels/cpu/maps/rows.c",
        "going = taken < drafts && tokens[taken] == token;",
        "going = taken < drafts;",
        ("kernels/test_row_ops.py", "e2e/test_speculation.py"),
    ),
    Mutant(
        "structured output: a row gets the mask of the state before",
        "scheduler/features/grammar/masks.py",
        "        accepted += 1\n        constraint.fill(mask_np)",
        "        accepted += 1\n        constraint.fill(mask_np.copy())",
        ("structured", "scheduler", "e2e/test_structured.py", "matrix"),
    ),
    Mutant(
        "CPU attention: a query does not see its own key",
        "kernels/cpu/attention/rows.c",
        "max64(min64(end_of_keys(a, it, pos) - start, high), low)",
        "max64(min64(end_of_keys(a, it, pos) - 1 - start, high), low)",
        ("kernels/test_cpu_attention.py", "kernels/test_cpu_ops.py"),
    ),
    Mutant(
        "Triton attention: a query does not see its own key",
        "kernels/triton/attention/attention_tile.py",
        "(key <= pos)",
        "(key < pos)",
        ("kernels/test_triton_attention.py", "kernels/test_triton_ops.py"),
    ),
    Mutant(
        "models: rotations turn the other way",
        "models/layers/positions/rotary.py",
        "angles.sin() * magnitude",
        "-angles.sin() * magnitude",
        ("models", "e2e/test_transformers_parity.py"),
    ),
    Mutant(
        "GGUF: norms stored as one plus the weight are taken as they are",
        "gguf/weights.py",
        "return values.sub_(1.0)",
        "return values",
        ("gguf",),
    ),
    Mutant(
        "GGUF: queries, keys and values stay apart where a checkpoint has them head by head",
        "gguf/weights.py",
        "if piece.layout is not Layout.HEADS_APART:",
        "if piece.layout is not Layout.QUERY_PAIRS:",
        ("gguf/test_families.py",),
    ),
    Mutant(
        "GGUF: a Mamba-2 norms its groups together",
        "gguf/state_config.py",
        '"n_groups": groups,\n        "mamba_norm_groups": groups,\n    }\n\n\ndef _attending',
        '"n_groups": groups,\n        "mamba_norm_groups": 1,\n    }\n\n\ndef _attending',
        ("gguf/test_families.py",),
    ),
    Mutant(
        "LoRA: rank-stabilised adapters are scaled as others",
        "lora/config.py",
        "alpha / rank**0.5 if self.rslora else alpha / rank",
        "alpha / rank",
        ("lora", "e2e/test_lora.py"),
    ),
    Mutant(
        "ranks: the share of the last one is not added",
        "kernels/cpu/ranks/collectives.c",
        "for (int64_t r = 1; r < w->shared->num_ranks; r++)\n            total",
        "for (int64_t r = 1; r + 1 < w->shared->num_ranks; r++)\n            total",
        ("distributed/test_collectives.py", "distributed/test_tensor_parallel.py"),
    ),
    Mutant(
        "executor: the last rank gets no messages",
        "executor/network/network_ranks.py",
        "        for rank in self._ranks:\n            rank.connection.write",
        "        for rank in self._ranks[:-1]:\n            rank.connection.write",
        ("distributed/test_joining.py", "distributed/test_processes.py", "distributed/test_nodes.py"),
    ),
    Mutant(
        "engine: a request resumed after a death lacks its last token",
        "engine/supervise/journal.py",
        "output_token_ids=tuple(self.token_ids))",
        "output_token_ids=tuple(self.token_ids[:-1]))",
        ("engine",),
    ),
    Mutant(
        "engine: a silent engine process is never replaced",
        "engine/supervise/watchdog.py",
        "if 0 < allowed < self._silence:",
        "if 0 > allowed:",
        ("engine/test_supervisor.py",),
    ),
    Mutant(
        "router: a request goes to the engine that knows least of it",
        "engine/fleet/router.py",
        "if not left <= engines:",
        "if left <= engines:",
        ("engine",),
    ),
    Mutant(
        "text: a stop string is left in the text",
        "text/stop.py",
        "released = self._release(pending, len(pending) - (0 if self._include else len(stop)))",
        "released = self._release(pending, len(pending))",
        ("text",),
    ),
    Mutant(
        "server: a request whose client has left counts as finished",
        "entrypoints/server/http/admission.py",
        "        else:  # cancelled, the generator closed, or the client gone\n            self.abort()",
        "        else:  # cancelled, the generator closed, or the client gone\n            self.finish()",
        ("server/test_completions_errors.py", "server/test_limits_admission.py"),
    ),
    Mutant(
        "engine: an adapter that a restarted engine lacks is not logged",
        "engine/supervise/supervisor.py",
        'logger.warning("the restarted engine lacks %s: %s", kept.name, error)',
        "pass",
        ("engine/test_adapter_process.py",),
    ),
    Mutant(
        "shell: a model file that cannot be read ends with the status of a usage error",
        "config/cli.py",
        "return 1 if isinstance(error, ModelFileError",
        "return 2 if isinstance(error, ModelFileError",
        ("cli",),
    ),
)
