"""More adapters than there is room for: 60 through eight slots, pinned ones among them, and orders about adapters."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from cadence import LLM, SamplingParams
from cadence.core.errors import AdapterError, InvalidRequestError
from cadence.core.lora_request import LoRARequest
from cadence.core.sampling_params import RequestOutputKind
from cadence.engine.llm_engine import LLMEngine
from cadence.lora.adapter import open_adapter
from cadence.lora.limits import LoraLimits
from cadence.lora.store import AdapterStore
from tests.e2e.test_lora import prompt_of
from tests.e2e.test_speculation import opened
from tests.helpers.oracle import likeliest, load_oracle

pytestmark = pytest.mark.engine

COUNT, SLOTS, ON_HOST, PINNED = 60, 8, 24, 3
PARAMS = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True, output_kind=RequestOutputKind.FINAL_ONLY)
MODULES = ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj")


@pytest.fixture(scope="module")
def adapters(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> list[LoRARequest]:
    """Of ranks 1 and 2, written by hand: PEFT would take its time."""
    root, shapes = tmp_path_factory.mktemp("many"), shapes_of(tiny_model("llama"))
    return [write(root / str(number), shapes, rank=1 + number % 2, number=number) for number in range(1, COUNT + 1)]


def shapes_of(model: Path) -> dict[str, tuple[int, int]]:
    return {
        name.removesuffix(".weight"): (tensor.shape[0], tensor.shape[1])
        for name, tensor in load_file(model / "model.safetensors").items()
        if name.removesuffix(".weight").endswith(MODULES)
    }


def write(path: Path, shapes: dict[str, tuple[int, int]], rank: int, number: int) -> LoRARequest:
    generator = torch.Generator().manual_seed(number)
    tensors = {}
    for name, (out, inputs) in shapes.items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = torch.randn(rank, inputs, generator=generator)
        tensors[f"base_model.model.{name}.lora_B.weight"] = torch.randn(out, rank, generator=generator) * 0.05
    path.mkdir(exist_ok=True)
    save_file(tensors, path / "adapter_model.safetensors")
    targets = [module.split(".")[1] for module in MODULES]
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 2, "target_modules": targets}
    (path / "adapter_config.json").write_text(json.dumps(config))
    return LoRARequest(path.name, number, str(path))


def by_peft(model: Path, adapter: LoRARequest, prompt: list[int], tokens: list[int]) -> list[int]:
    """What it would say in place of each of them"""
    from peft import PeftModel

    adapted = PeftModel.from_pretrained(load_oracle(model), adapter.lora_path).eval()
    return likeliest(adapted, prompt, tokens)


def run(engine: LLMEngine, asked: Sequence[tuple[list[int], LoRARequest | None]]) -> list[list[int]]:
    """All at once -> the tokens of each"""
    for index, (prompt, adapter) in enumerate(asked):
        engine.add_request(str(index), prompt, PARAMS, lora_request=adapter)
    found: dict[str, list[int]] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            assert output.outputs[0].finish_reason == "length", output.outputs[0].stop_reason
            found[output.request_id] = list(output.outputs[0].token_ids)
    return [found[str(index)] for index in range(len(asked))]


def test_many_adapters_pass_through_eight_slots(
    tiny_model: Callable[[str], Path], adapters: list[LoRARequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one batch with rows that have none; the first three are pinned, and are read and put into a slot once."""
    read, put = Counter[str](), Counter[str]()
    prepare, into_slot = AdapterStore.prepare, AdapterStore.put
    monkeypatch.setattr(AdapterStore, "prepare", lambda self, path: (read.update([path]), prepare(self, path))[1])
    monkeypatch.setattr(
        AdapterStore, "put", lambda self, slot, digest: (put.update([digest]), into_slot(self, slot, digest))[1]
    )
    directory = tiny_model("llama")
    many: list[LoRARequest | None] = [*adapters, None]
    asked = [(prompt_of(index, 3 + index % 9), adapter) for index, adapter in enumerate([*many, *many[:20], None])]
    options = {"enable_lora": True, "max_loras": SLOTS, "max_cpu_loras": ON_HOST, "num_gpu_blocks_override": 2000}
    with opened(directory, **options) as engine:
        for adapter in adapters[:PINNED]:
            assert engine.add_lora(adapter) and engine.pin_lora(adapter.lora_int_id)
        together = run(engine, asked)
        assert run(engine, asked) == together
        held = engine.list_loras()
        assert len(held) == ON_HOST and held > {1, 2, 3}
        alone = [run(engine, [each])[0] for each in asked[::10]]
    assert alone == together[::10]
    for index in range(0, COUNT, 20):
        tokens = together[index]
        assert len(tokens) == PARAMS.max_tokens
        assert tokens == by_peft(directory, adapters[index], asked[index][0], tokens), index
    assert len(set(map(tuple, together))) > COUNT // 2, "adapters that say the same prove little"
    for adapter in adapters[:PINNED]:
        assert read[adapter.lora_path] == put[open_adapter(Path(adapter.lora_path), LoraLimits()).read(()).digest] == 1
    assert max(read.values()) > 1 < max(put.values()) and len(put) == COUNT


def test_orders_about_adapters(tiny_model: Callable[[str], Path], adapters: list[LoRARequest], tmp_path: Path) -> None:
    shapes = shapes_of(tiny_model("llama"))
    mine = write(tmp_path / "mine", shapes, rank=1, number=500)
    first, second, third = adapters[:3]
    options = {"dtype": "float32", "max_model_len": 64, "num_gpu_blocks_override": 40}
    with LLM(str(tiny_model("llama")), enable_lora=True, max_loras=2, max_cpu_loras=2, **options) as llm:

        def said(adapter: LoRARequest | None) -> tuple[list[int], str | None]:
            (output,) = llm.generate([[5, 6, 7]], PARAMS, lora_request=adapter, use_tqdm=False)
            return list(output.outputs[0].token_ids), str(output.outputs[0].stop_reason)

        assert llm.list_loras() == set() and not llm.remove_lora(1)
        assert llm.add_lora(mine) and llm.list_loras() == {500}
        before = said(mine)
        write(tmp_path / "mine", shapes, rank=2, number=501)
        assert said(mine) == before, "it was read once"
        assert llm.remove_lora(500) and not llm.remove_lora(500) and llm.list_loras() == set()
        assert said(mine) != before and llm.list_loras() == {500}, "and is read again"
        assert llm.add_lora(first) and llm.pin_lora(1) and llm.pin_lora(1)
        assert llm.add_lora(second) and llm.list_loras() == {1, 2} and llm.pin_lora(2)
        with pytest.raises(AdapterError, match=r"2 adapters are in host memory \(max_cpu_loras\)"):
            llm.add_lora(third)
        with pytest.raises(InvalidRequestError, match="lora_id 3 is no adapter in host memory"):
            llm.pin_lora(3)
        with pytest.raises(AdapterError, match="no such file"):
            llm.remove_lora(2)
            llm.add_lora(LoRARequest("nowhere", 9, str(tmp_path / "nowhere")))
        for wrong in (0, -1, True, "1", 1 << 70):
            with pytest.raises(InvalidRequestError, match="lora_id must be an integer of at least 1"):
                llm.pin_lora(wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequestError, match="lora_request must be a LoRARequest"):
            llm.add_lora(None)  # type: ignore[arg-type]


def test_more_pinned_than_slots(tiny_model: Callable[[str], Path], adapters: list[LoRARequest]) -> None:
    """It is one error; and who would wait for a slot for ever is told so."""
    options = {"dtype": "float32", "max_model_len": 64, "num_gpu_blocks_override": 40}
    with LLM(str(tiny_model("llama")), enable_lora=True, max_loras=2, **options) as llm:
        for adapter in adapters[:3]:
            llm.add_lora(adapter)
        assert llm.pin_lora(1) and llm.pin_lora(2)
        with pytest.raises(InvalidRequestError, match=r"lora_id 3 cannot be pinned: there are 2 slots .* pinned"):
            llm.pin_lora(3)
        both = [adapters[0], adapters[2], None, adapters[1]]
        outputs = llm.generate([[5, 6]] * 4, PARAMS, lora_request=both, use_tqdm=False)
        reasons = [output.outputs[0].finish_reason for output in outputs]
        assert reasons == ["length", "error", "length", "length"]
        assert "all 2 slots for adapters (max_loras) have pinned ones" in str(outputs[1].outputs[0].stop_reason)
        assert llm.remove_lora(1)
        (output,) = llm.generate([[5, 6]], PARAMS, lora_request=adapters[2], use_tqdm=False)
        assert output.outputs[0].finish_reason == "length"
