"""One model in several formats of few bits, timed in turns on this CPU, in one process. A JSON line for each run.

    python -m benchmarks.quant_formats [--formats "Q4_0;GPTQ:32;Q4_1;AWQ:32;AWQ:128"] [--shape qwen2.5-0.5b]
        [--vocabulary N] [--folder DIR] [--rounds 3] [--cases a,b] [--out FILE]

A format is a type of GGUF, or GPTQ (symmetric) or AWQ (with zero points) and its group size. Weights are random, those
of one layer in all; embedding and head are one matrix of float16 in each. The model is a Llama of that shape, without
biases. Files are kept in the folder, and not made again; `--rounds 0` makes them and no more.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors.torch import save_file

from benchmarks.machine import describe_machine
from benchmarks.peers.drive_cadence import open_engine
from benchmarks.peers.driver import Run, once
from benchmarks.peers.workloads import Request, requests
from benchmarks.shapes import SHAPES
from tests.helpers.gguf_files import add_metadata
from tests.helpers.quantized_writers import awq, gptq
from tests.helpers.tiny_quantized import AWQ, GPTQ

FORMATS = "Q4_0;GPTQ:32;Q4_1;AWQ:32;AWQ:128"
_WARM_UP = 32  # tokens in, and out
_NAMES = {  # of a layer's matrices: in a checkpoint, in a GGUF file
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", default=FORMATS, help="separated by semicolons")
    parser.add_argument("--shape", default="qwen2.5-0.5b", choices=sorted(SHAPES))
    parser.add_argument("--vocabulary", type=int, default=0, help="0 = that of the shape")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "quant_formats")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", default="a,b", help="of benchmarks.cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="lines are added to this file, too")
    args = parser.parse_args()
    shape = {**SHAPES[args.shape], "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "float16"}
    shape["vocab_size"] = args.vocabulary or shape["vocab_size"]
    folder = args.folder / f"{args.shape}-{shape['vocab_size']}"
    models = {form: make(form, shape, folder) for form in args.formats.split(";")}
    if not args.rounds:
        return
    about = {"machine": describe_machine(), "shape": args.shape, "vocabulary": shape["vocab_size"]}
    _put(about | {"threads": args.threads}, args.out)
    runs = {form: open_model(path, args.threads) for form, path in models.items()}
    for case in args.cases.split(","):
        time_in_turns(case, runs, args.rounds, args.out)


def time_in_turns(case: str, runs: dict[str, Run], rounds: int, out: Path | None) -> None:
    for run in runs.values():
        run([Request(request.prompt[:_WARM_UP], _WARM_UP) for request in requests(case, 0)[:1]])
    rates: dict[str, list[float]] = {form: [] for form in runs}
    for index in range(1, rounds + 1):
        for form, run in runs.items():
            rate, _, others = once(run, case, index)
            rates[form].append(round(rate, 2))
            line = {"case": case, "round": index, "format": form, "tokens_per_second": rates[form][-1]}
            _put({**line, "cores_used_by_others": round(others, 2)}, out)
    medians = {form: statistics.median(found) for form, found in rates.items()}
    _put({"case": case, "rounds": rounds, "median": medians}, out)


def open_model(path: Path, threads: int) -> Run:
    options = {"skip_tokenizer_init": True, "kv_cache_memory_bytes": 1 << 28}
    return open_engine(argparse.Namespace(model=str(path), threads=threads, options=options))[0]


def make(form: str, shape: dict[str, Any], folder: Path) -> Path:
    kind, group = [*form.split(":"), ""][:2]
    path = folder / (f"{kind}-{group}" if group else f"{kind}.gguf")
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as half:
            whole = Path(half) / path.name
            if group:
                _write_checkpoint(whole, kind, int(group), shape)
            else:
                _write_gguf(whole, kind, shape)
            whole.rename(path)
    return path


def _matrices(shape: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Of one layer: name in a checkpoint, [rows, cols] float32."""
    hidden, inner, dim = shape["hidden_size"], shape["intermediate_size"], shape["head_dim"]
    queries, keys = shape["num_attention_heads"] * dim, shape["num_key_value_heads"] * dim
    sizes = ((queries, hidden), (keys, hidden), (keys, hidden), (hidden, queries))
    sizes += ((inner, hidden), (inner, hidden), (hidden, inner))
    generator = torch.Generator().manual_seed(3)
    for name, size in zip(_NAMES, sizes, strict=True):
        yield name, torch.randn(size, generator=generator) * size[1] ** -0.5


def _embedding(shape: dict[str, Any]) -> torch.Tensor:
    size = shape["vocab_size"], shape["hidden_size"]
    return (torch.randn(size, generator=torch.Generator().manual_seed(5)) * 0.02).to(torch.float16)


def _write_checkpoint(folder: Path, kind: str, group: int, shape: dict[str, Any]) -> None:
    one = torch.ones(shape["hidden_size"], dtype=torch.float16)
    layer = {"input_layernorm.weight": one, "post_attention_layernorm.weight": one}
    for name, matrix in _matrices(shape):
        parts, _ = gptq(matrix, 4, group, symmetric=True) if kind == "GPTQ" else awq(matrix, group)
        layer |= {f"{name}.{part}": tensor.contiguous() for part, tensor in parts.items()}
    tensors = {"model.embed_tokens.weight": _embedding(shape), "model.norm.weight": one}
    for index in range(shape["num_hidden_layers"]):
        tensors |= {f"model.layers.{index}.{name}": tensor.clone() for name, tensor in layer.items()}
    if not shape["tie_word_embeddings"]:
        tensors["lm_head.weight"] = _embedding(shape)
    method = GPTQ | {"bits": 4} if kind == "GPTQ" else AWQ
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(shape | {"quantization_config": method | {"group_size": group}}))


def _write_gguf(path: Path, kind: str, shape: dict[str, Any]) -> None:
    writer, stored = gguf.GGUFWriter(path, "llama"), gguf.GGMLQuantizationType[kind]
    for key, value in _metadata(shape).items():
        add_metadata(writer, f"llama.{key}", value)
    one_np = torch.ones(shape["hidden_size"]).numpy()
    layer = [(f"{_NAMES[name]}.weight", gguf.quantize(matrix.numpy(), stored)) for name, matrix in _matrices(shape)]
    writer.add_tensor("token_embd.weight", _embedding(shape).numpy())
    if not shape["tie_word_embeddings"]:
        writer.add_tensor("output.weight", _embedding(shape).numpy())
    writer.add_tensor("output_norm.weight", one_np)
    for index in range(shape["num_hidden_layers"]):
        for name, blocks_np in layer:
            writer.add_tensor(f"blk.{index}.{name}", blocks_np, raw_dtype=stored)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{index}.{name}.weight", one_np)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _metadata(shape: dict[str, Any]) -> dict[str, Any]:
    return {
        "block_count": shape["num_hidden_layers"],
        "context_length": shape["max_position_embeddings"],
        "embedding_length": shape["hidden_size"],
        "feed_forward_length": shape["intermediate_size"],
        "attention.head_count": shape["num_attention_heads"],
        "attention.head_count_kv": shape["num_key_value_heads"],
        "attention.key_length": shape["head_dim"],
        "attention.value_length": shape["head_dim"],
        "attention.layer_norm_rms_epsilon": shape["rms_norm_eps"],
        "rope.freq_base": shape["rope_theta"],
        "rope.dimension_count": shape["head_dim"],
        "vocab_size": shape["vocab_size"],
    }


def _put(line: dict[str, Any], out: Path | None) -> None:
    print(json.dumps(line), flush=True)
    if out is not None:
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
