"""What users do with `LLM`, and what they may rely on."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cadence import LLM, BeamSearchParams, RequestOutputKind, SamplingParams
from cadence.core.contract.request import EngineRequest
from cadence.core.errors import InvalidRequestError
from cadence.text.chat_template import ChatRequest
from tests.helpers import oracle

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def directory(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("llama")


@pytest.fixture(scope="module")
def llm(directory: Path) -> LLM:
    return LLM(str(directory), dtype="float32", max_model_len=256, max_logprobs=-1)


def greedy(max_tokens: int = 16, **options: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **options)


def ids_of(llm: LLM, prompt: Any, params: SamplingParams) -> list[int]:
    return list(llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].token_ids)


def test_shapes_of_prompts_agree(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("some words")
    outputs = [
        llm.generate(prompt, greedy(), use_tqdm=False)[0]
        for prompt in ("some words", {"prompt": "some words"}, {"prompt_token_ids": ids}, ids)
    ]
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) == 1
    assert outputs[0].prompt == "some words" and outputs[0].prompt_token_ids == ids
    assert outputs[2].prompt is None and outputs[2].finished


def test_outputs_come_in_order_with_params_of_their_own(llm: LLM) -> None:
    params = [greedy(n) for n in (5, 2, 9)]
    outputs = llm.generate(["a", "b", "c"], params, use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [5, 2, 9]
    assert [output.prompt for output in outputs] == ["a", "b", "c"]
    assert {output.outputs[0].finish_reason for output in outputs} == {"length"}


def test_text_is_the_decoded_tokens(llm: LLM) -> None:
    completion = llm.generate("x", greedy(40), use_tqdm=False)[0].outputs[0]
    assert completion.text == llm.get_tokenizer().decode(list(completion.token_ids))


def test_n_completions_are_those_of_n_seeds(llm: LLM) -> None:
    params = SamplingParams(n=3, seed=5, temperature=1.0, max_tokens=12, ignore_eos=True)
    output = llm.generate("many", params, use_tqdm=False)[0]
    assert [completion.index for completion in output.outputs] == [0, 1, 2]
    for index, completion in enumerate(output.outputs):
        single = SamplingParams(seed=5 + index, temperature=1.0, max_tokens=12, ignore_eos=True)
        assert list(completion.token_ids) == ids_of(llm, "many", single)
    assert len({tuple(completion.token_ids) for completion in output.outputs}) == 3


def test_stop_token_and_eos(llm: LLM) -> None:
    tokens = ids_of(llm, "stop here", greedy(12))
    cut = next(i for i in range(2, 12) if tokens[i] not in tokens[:i])
    output = llm.generate("stop here", greedy(12, stop_token_ids=[tokens[cut]]), use_tqdm=False)[0].outputs[0]
    assert list(output.token_ids) == tokens[: cut + 1]
    assert (output.finish_reason, output.stop_reason) == ("stop", tokens[cut])
    assert output.text == llm.get_tokenizer().decode(tokens[:cut])


def test_min_tokens_holds_stops_back(llm: LLM) -> None:
    tokens = ids_of(llm, "stop here", greedy(12))
    params = greedy(12, stop_token_ids=tokens[:3], min_tokens=6)
    output = llm.generate("stop here", params, use_tqdm=False)[0].outputs[0]
    assert len(output.token_ids) >= 6 and not set(output.token_ids[:5]) & set(tokens[:3])


def test_stop_string_across_tokens(llm: LLM) -> None:
    text = llm.generate("go", greedy(40), use_tqdm=False)[0].outputs[0].text
    middle = text[7:10]
    for include in (False, True):
        params = greedy(40, stop=[middle, "never there"], include_stop_str_in_output=include)
        output = llm.generate("go", params, use_tqdm=False)[0].outputs[0]
        end = text.index(middle) + (len(middle) if include else 0)
        assert output.text == text[:end]
        assert (output.finish_reason, output.stop_reason) == ("stop", middle)


def test_logprobs_of_the_whole_vocabulary(llm: LLM, directory: Path) -> None:
    output = llm.generate([5, 6, 7], greedy(3, logprobs=-1, prompt_logprobs=-1), use_tqdm=False)[0]
    expected = oracle.logprobs(oracle.load_oracle(directory), [5, 6, 7, *output.outputs[0].token_ids])
    assert output.outputs[0].logprobs is not None and output.prompt_logprobs is not None
    positions = output.prompt_logprobs[1:] + output.outputs[0].logprobs
    for index, position in enumerate(positions):
        assert position is not None and len(position) == expected.shape[1]
        assert math.fsum(math.exp(entry.logprob) for entry in position.values()) == pytest.approx(1, abs=1e-4)
        found = torch.tensor([position[token].logprob for token in range(expected.shape[1])])
        assert torch.allclose(found, expected[index], atol=1e-4)


def test_logit_bias_bad_words_and_allowed(llm: LLM) -> None:
    assert ids_of(llm, "z", greedy(5, logit_bias={42: 100.0})) == [42] * 5
    assert set(ids_of(llm, "z", greedy(20, allowed_token_ids=[7, 8, 9]))) <= {7, 8, 9}
    first = ids_of(llm, "z", greedy(6))
    word = llm.get_tokenizer().decode(first[:1])
    banned = llm.get_tokenizer().encode(word, add_special_tokens=False)
    again = ids_of(llm, "z", greedy(6, bad_words=[word]))
    assert not any(again[i : i + len(banned)] == banned for i in range(len(again)))


def test_custom_logits_processors(directory: Path) -> None:
    def only_even(output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        logits[1::2] = -math.inf
        return logits

    def no_repeats(prompt_ids: list[int], output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        logits[output_ids] = -math.inf
        return logits

    llm = LLM(str(directory), dtype="float32", max_model_len=128, logits_processors=[only_even])
    plain, unique = llm.generate(["q", "q"], [greedy(20), greedy(20, logits_processors=[no_repeats])], use_tqdm=False)
    assert all(token % 2 == 0 for token in [*plain.outputs[0].token_ids, *unique.outputs[0].token_ids])
    assert len(set(unique.outputs[0].token_ids)) == 20


def test_a_failing_processor_fails_its_request_alone(llm: LLM) -> None:
    def broken(output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        if len(output_ids) == 3:
            raise RuntimeError("no luck")
        return logits

    good, bad = llm.generate(["p", "p"], [greedy(8), greedy(8, logits_processors=[broken])], use_tqdm=False)
    assert good.outputs[0].finish_reason == "length"
    assert bad.outputs[0].finish_reason == "error" and "no luck" in str(bad.outputs[0].stop_reason)
    assert list(bad.outputs[0].token_ids) == list(good.outputs[0].token_ids)[:3]


def test_beam_search_finds_what_exhaustive_extension_finds(llm: LLM, directory: Path) -> None:
    """Against a direct beam search over the oracle's distributions."""
    reference, width, length, prompt = oracle.load_oracle(directory), 3, 5, [5, 6, 7, 8]
    beams: list[tuple[float, list[int]]] = [(0.0, prompt)]
    for _ in range(length):
        grown = []
        for score, tokens in beams:
            line = oracle.logprobs(reference, tokens)[-1]
            values, ids = line.topk(2 * width)
            grown += [(score + float(v), [*tokens, int(i)]) for v, i in zip(values, ids, strict=True)]
        beams = sorted(grown, reverse=True)[:width]
    params = BeamSearchParams(beam_width=width, max_tokens=length, ignore_eos=True)
    found = llm.beam_search([{"prompt_token_ids": prompt}], params)[0].sequences
    assert [beam.tokens for beam in found] == [tokens for _, tokens in beams]
    assert [beam.cum_logprob for beam in found] == pytest.approx([score for score, _ in beams], abs=1e-3)


def test_beams_have_what_their_prompt_says(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cache salt and its engine, in every round, whatever other prompts are searched."""
    added: list[tuple[EngineRequest, int | None]] = []
    add = llm.llm_engine._core.add
    monkeypatch.setattr(llm.llm_engine._core, "add", lambda *given: (added.append(given), add(*given)))
    prompts: list[Any] = [
        {"prompt_token_ids": [5, 6, 7], "cache_salt": "mine", "data_parallel_rank": 0},
        {"prompt_token_ids": [8, 9], "cache_salt": "yours"},
        [3, 4],
    ]
    for limit in (None, 2):
        added.clear()
        llm.beam_search(prompts, BeamSearchParams(beam_width=2, max_tokens=3, ignore_eos=True), concurrency_limit=limit)
        found = {(tuple(asked.prompt_token_ids[:2]), asked.cache_salt, engine) for asked, engine in added}
        assert found == {((5, 6), "mine", 0), ((8, 9), "yours", None), ((3, 4), "", None)}
        assert len(added) == 3 * (1 + 2 + 2)
    with pytest.raises(InvalidRequestError, match="data_parallel_rank must be 0"):
        llm.beam_search({"prompt": "x", "data_parallel_rank": 3}, BeamSearchParams(beam_width=2, max_tokens=3))


def test_prefix_cache_is_used_and_reset(directory: Path) -> None:
    llm = LLM(str(directory), dtype="float32", max_model_len=256)
    prompt = {"prompt_token_ids": list(range(10, 90))}
    cold = llm.generate(prompt, greedy(4), use_tqdm=False)[0]
    warm = llm.generate(prompt, greedy(4), use_tqdm=False)[0]
    salted = llm.generate({**prompt, "cache_salt": "mine"}, greedy(4), use_tqdm=False)[0]
    assert llm.reset_prefix_cache()
    fresh = llm.generate(prompt, greedy(4), use_tqdm=False)[0]
    assert [output.num_cached_tokens for output in (cold, warm, salted, fresh)] == [0, 64, 0, 0]
    assert len({tuple(output.outputs[0].token_ids) for output in (cold, warm, salted, fresh)}) == 1


def test_metrics_count_what_happened(directory: Path) -> None:
    llm = LLM(str(directory), dtype="float32", max_model_len=128)
    llm.generate([[5, 6, 7], [8, 9]], greedy(6), use_tqdm=False)
    values = {metric.name: metric for metric in llm.get_metrics() if "finished_reason" not in metric.labels}
    assert values["vllm:prompt_tokens"].value == 5
    assert values["vllm:generation_tokens"].value == 12
    assert values["vllm:num_requests_running"].value == 0
    assert values["vllm:time_to_first_token_seconds"].count == 2


def test_control_tokens_in_messages_are_text_when_escaped(llm: LLM, directory: Path) -> None:
    tokenizer = llm.get_tokenizer()
    token = tokenizer.eos_token
    template = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    escaped = LLM(str(directory), dtype="float32", max_model_len=64, chat_template=template, escape_control_tokens=True)
    for content, counts in ((f"a{token}b", (2, 1)), ("a b", (1, 1))):
        chat = ChatRequest([{"role": "user", "content": content}])
        prompts = [llm.chat_prompt(chat, template), escaped.chat_prompt(chat)]
        assert tuple(prompt["prompt_token_ids"].count(tokenizer.eos_token_id) for prompt in prompts) == counts
        assert prompts[0]["prompt"] == prompts[1]["prompt"] == content + token


def test_chat_renders_the_template(llm: LLM) -> None:
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    template += "{% if add_generation_prompt %}<bot>{% endif %}"
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    output = llm.chat(messages, greedy(4), chat_template=template, use_tqdm=False)[0]
    text = "<system>be brief<user>hello<bot>"
    assert output.prompt_token_ids == llm.get_tokenizer().encode(text, add_special_tokens=False)
    tools = [{"type": "function", "function": {"name": "clock", "parameters": {}}}]
    output = llm.chat(messages, greedy(4), tools=tools, chat_template="{{ tools[0].function.name }}", use_tqdm=False)[0]
    assert output.prompt_token_ids == llm.get_tokenizer().encode("clock", add_special_tokens=False)


@pytest.mark.parametrize("kind", list(RequestOutputKind))
def test_output_kinds(llm: LLM, kind: RequestOutputKind) -> None:
    engine = llm.llm_engine
    whole = llm.generate("stream", greedy(10, logprobs=1), use_tqdm=False)[0].outputs[0]
    engine.add_request("s", "stream", greedy(10, logprobs=1, output_kind=kind))
    seen = []
    while engine.has_unfinished_requests():
        seen += engine.step()
    completions = [output.outputs[0] for output in seen]
    if kind is RequestOutputKind.DELTA:
        assert "".join(c.text for c in completions) == whole.text and len(seen) == 10
        assert [token for c in completions for token in c.token_ids] == list(whole.token_ids)
        assert [position for c in completions for position in c.logprobs or ()] == whole.logprobs
    else:
        assert completions[-1].text == whole.text and list(completions[-1].token_ids) == list(whole.token_ids)
        assert len(seen) == (10 if kind is RequestOutputKind.CUMULATIVE else 1)
    assert [output.finished for output in seen] == [False] * (len(seen) - 1) + [True]


def test_abort_ends_with_one_output(llm: LLM) -> None:
    engine = llm.llm_engine
    engine.add_request("gone", "abort me", greedy(200))
    engine.add_request("stays", "let me be", greedy(8))
    for _ in range(4):
        engine.step()
    engine.abort_request(["gone", "unknown"])
    last: dict[str, Any] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            assert not last.get(output.request_id) or not last[output.request_id].finished
            last[output.request_id] = output
    assert last["gone"].outputs[0].finish_reason == "abort" and last["gone"].finished
    assert last["stays"].outputs[0].finish_reason == "length"


def test_work_begins_while_later_prompts_are_still_read(directory: Path, llm: LLM) -> None:
    begun: list[int] = []  # requests there were when a row was computed

    def note(token_ids: Any, logits: torch.Tensor) -> torch.Tensor:
        begun.append(early.llm_engine.get_num_unfinished_requests())
        return logits

    options = {"max_num_batched_tokens": 64, "async_scheduling": True, "logits_processors": [note]}
    early = LLM(str(directory), dtype="float32", max_model_len=256, **options)
    prompts = [[(7 * i + j) % 200 + 3 for j in range(20 + i)] for i in range(10)]
    found = early.generate(prompts, greedy(8), use_tqdm=False)
    wanted = llm.generate(prompts, greedy(8), use_tqdm=False)
    assert [o.outputs[0].token_ids for o in found] == [o.outputs[0].token_ids for o in wanted]
    first, second, *_ = dict.fromkeys(begun)
    assert first == 4, "20 + 21 + 22 tokens do not fill a step of 64, with 23 more they do"
    assert second < 10, "two steps may be in flight before all prompts are there"

    begun.clear()
    with pytest.raises(InvalidRequestError, match="vocabulary"):
        early.generate([*prompts, [10**6]], greedy(8), use_tqdm=False)
    assert begun, "the bad prompt came when steps were in flight"
    found = early.generate(prompts, greedy(8), use_tqdm=False)
    assert [o.outputs[0].token_ids for o in found] == [o.outputs[0].token_ids for o in wanted]


def test_the_most_urgent_prompt_comes_first_even_if_it_is_read_last(directory: Path) -> None:
    options = {"max_num_batched_tokens": 64, "async_scheduling": True, "max_num_seqs": 1}
    llm = LLM(str(directory), dtype="float32", max_model_len=256, scheduling_policy="priority", **options)
    outputs = llm.generate([[5] * 60, [6] * 60, [7] * 60], greedy(4), priority=[3, 2, 1], use_tqdm=False)
    starts = [output.metrics.first_token_time for output in outputs]
    assert starts == sorted(starts, reverse=True)
