"""Speculative decoding as users ask for it: vLLM's keys, what each becomes, and one sentence for each mistake."""

from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models

from cadence.config.args import EngineArgs
from cadence.config.engine_config import EngineConfig
from cadence.config.hf import HFConfig, make_hf_config
from cadence.config.reference import ModelFiles
from cadence.config.resolve.resolve import ResolveInputs, resolve
from cadence.config.speculative import (
    NO_SPECULATION,
    DraftSource,
    SpeculativeConfig,
    check_draft,
    settled_method,
)
from cadence.config.speculative_options import MOST_TOKENS
from cadence.core.errors import ConfigError, ModelNotFoundError
from cadence.engine.source import check_draft_vocabulary, find_source
from cadence.entrypoints.engine_args import EngineArgs as PeerArgs
from cadence.text.hf_directory import load_tokenizer
from tests.config.test_resolve import CPU, FOLDER, hf
from tests.helpers.tiny_tokenizers import save


def config_of(hf_config: HFConfig | None = None, draft: DraftSource | None = None, **keys: Any) -> SpeculativeConfig:
    return engine_config(hf_config, draft, speculative_config=keys).speculative


def engine_config(hf_config: HFConfig | None = None, draft: DraftSource | None = None, **options: Any) -> EngineConfig:
    inputs = ResolveInputs(draft=draft)
    return resolve(EngineArgs.from_options(**options), FOLDER, hf_config or hf(), CPU, inputs)


def draft_hf(name: str = "head", **raw: Any) -> HFConfig:
    base = {"architectures": ["LlamaForCausalLM"]}
    return make_hf_config(name, Path("/models/head/config.json"), {**base, **raw}, {})


@pytest.mark.parametrize("given", [None, {}, {"method": "none"}, {"method": "none", "num_speculative_tokens": 4}])
def test_off_unless_asked_for(given: dict[str, Any] | None) -> None:
    found = engine_config(speculative_config=given).speculative
    assert found is NO_SPECULATION
    assert (found.method, found.num_tokens, found.enabled) == ("none", 0, False)


@pytest.mark.parametrize(
    "given",
    [
        {"method": "ngram"},
        {"method": "[ngram]"},
        {"method": "ngram_gpu"},
        {"model": "ngram"},
        {"model": "[ngram]"},
        {"method": "ngram", "model": "ngram"},
    ],
)
def test_all_spellings_of_ngram(given: dict[str, Any]) -> None:
    found = config_of(**given, num_speculative_tokens=3)
    assert (found.method, found.num_tokens, found.draft) == ("ngram", 3, None)
    assert found.enabled and found.adaptive and found.rejection_sample_method == "exact"


@pytest.mark.parametrize(
    ("given", "lookup"),
    [
        ({}, (2, 5)),
        ({"prompt_lookup_max": 3}, (3, 3)),
        ({"prompt_lookup_min": 4}, (4, 4)),
        ({"prompt_lookup_min": 1, "prompt_lookup_max": 8}, (1, 8)),
    ],
)
def test_a_lookup_that_is_given_alone_counts_as_both(given: dict[str, int], lookup: tuple[int, int]) -> None:
    found = config_of(method="ngram", **given)
    assert (found.prompt_lookup_min, found.prompt_lookup_max) == lookup


@pytest.mark.parametrize(
    ("given", "verifier"),
    [
        ({}, "exact"),
        ({"rejection_sample_method": "strict"}, "exact"),
        ({"rejection_sample_method": "standard"}, "exact"),
        ({"rejection_sample_method": "standard", "draft_sample_method": "greedy"}, "exact"),
        ({"rejection_sample_method": "standard", "draft_sample_method": "probabilistic"}, "probabilistic"),
        ({"draft_sample_method": "probabilistic"}, "probabilistic"),
        ({"rejection_sample_method": "exact", "draft_sample_method": "probabilistic"}, "exact"),
        ({"rejection_sample_method": "probabilistic"}, "probabilistic"),
        ({"rejection_sample_method": "block"}, "probabilistic"),
    ],
)
def test_verifiers_under_the_names_of_vllm(given: dict[str, str], verifier: str) -> None:
    assert config_of(method="ngram", **given).rejection_sample_method == verifier


@pytest.mark.parametrize(
    ("given", "key", "said"),
    [
        ({"method": "ngrm"}, "method", "did you mean ngram?"),
        ({"method": "dspark"}, "method", "is not in this version; the methods are none, ngram"),
        ({"num_speculative_tokens": 4}, "method", "names neither a method nor a model"),
        ({"method": "ngram", "num_tokens": 4}, "num_tokens", "did you mean num_speculative_tokens?"),
        ({"method": "ngram", "zzz": 4}, "zzz", "unknown key speculative_config.zzz; known are method, num_spec"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "num_speculative_tokens", "between 1 and 31"),
        ({"method": "ngram", "num_speculative_tokens": -1}, "num_speculative_tokens", "between 1 and 31"),
        ({"method": "ngram", "num_speculative_tokens": 32}, "num_speculative_tokens", "between 1 and 31"),
        ({"method": "ngram", "num_speculative_tokens": 2.5}, "num_speculative_tokens", "expected a whole number"),
        ({"method": "ngram", "num_speculative_tokens": True}, "num_speculative_tokens", "expected a whole number"),
        ({"method": ["ngram"]}, "method", "expected text"),
        ({"method": "ngram", "adaptive": "perhaps"}, "adaptive", "expected true or false"),
        ({"method": "ngram", "prompt_lookup_max": 0}, "prompt_lookup_max", "between 1 and 32"),
        ({"method": "ngram", "prompt_lookup_min": 4, "prompt_lookup_max": 3}, "prompt_lookup_min", "at most prompt_lo"),
        ({"method": "draft_model"}, "model", "model is missing"),
        ({"method": "eagle"}, "model", "model is missing"),
        (
            {"method": "ngram", "rejection_sample_method": "synthetic"},
            "rejection_sample_method",
            "one of exact",
        ),
        ({"method": "ngram", "suffix_decoding_min_token_prob": 2}, "suffix_decoding_min_token_prob", "between 0 and 1"),
        ({"method": "ngram", "draft_tensor_parallel_size": 2}, "draft_tensor_parallel_size", "ranks of its target"),
        ({"method": "ngram", "synthetic_acceptance_length": 2.0}, "synthetic_acceptance_length", "changes no text"),
    ],
)
def test_mistakes_are_one_sentence_that_names_the_key(given: dict[str, Any], key: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineArgs.from_options(speculative_config=given)
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert caught.value.field == f"speculative_config.{key}"


def test_hints_of_vllm_are_named_once_and_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    hints = {"disable_by_batch_size": 8, "enforce_eager": True, "attention_backend": "FLASH_ATTN", "moe_backend": None}
    with caplog.at_level(logging.WARNING):
        found = config_of(method="ngram", **hints)
    assert found == config_of(method="ngram")
    said = [record.getMessage() for record in caplog.records]
    assert [line.split("=")[0].removeprefix("speculative_config.") for line in said] == [
        "disable_by_batch_size", "enforce_eager", "attention_backend",
    ]  # fmt: skip
    assert all("has no effect here: " in line for line in said)
    caplog.clear()
    args = EngineArgs.from_options(speculative_config={"method": "ngram", **hints})
    again = EngineArgs.from_options(**dataclasses.asdict(args))  # as the command line hands them on
    assert len(caplog.records) == 3 and again.speculative_config == {"method": "ngram"}


def test_more_drafts_than_a_step_or_the_context_holds() -> None:
    keys = {"method": "ngram", "num_speculative_tokens": 8}
    with pytest.raises(ConfigError, match="num_speculative_tokens=8 is not at most 7: max_model_len is 8"):
        engine_config(max_model_len=8, speculative_config=keys)
    with pytest.raises(ConfigError, match="is not at most 3: max_num_batched_tokens is 4"):
        engine_config(max_num_batched_tokens=4, max_num_seqs=4, speculative_config=keys)
    assert engine_config(max_model_len=9, speculative_config=keys).speculative.num_tokens == 8


def test_older_flags_mean_keys(caplog: pytest.LogCaptureFixture) -> None:
    new = EngineArgs.from_options(spec_method="ngram", spec_tokens=3, ngram_prompt_lookup_max=4)
    assert new.speculative_config == {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
    old = EngineArgs.from_options(speculative_model="[ngram]", num_speculative_tokens=5)
    assert old.speculative_config == {"model": "[ngram]", "num_speculative_tokens": 5}
    both = EngineArgs.from_options(spec_tokens=3, speculative_config={"method": "ngram", "num_speculative_tokens": 2})
    assert both.speculative_config["num_speculative_tokens"] == 2
    assert caplog.records == []


def test_engine_args_of_scripts_keep_it() -> None:
    args = PeerArgs(speculative_config={"method": "ngram", "num_speculative_tokens": 3})
    assert args.speculative_config == {"method": "ngram", "num_speculative_tokens": 3}


@pytest.mark.parametrize(
    ("head", "method"),
    [
        (draft_hf(), "draft_model"),
        (draft_hf("/home/eagle/qwen"), "draft_model"),
        (draft_hf("org/EAGLE-LLaMA3-Instruct-8B"), "eagle"),
        (draft_hf("org/EAGLE3-LLaMA3.1-Instruct-8B"), "eagle3"),
        (draft_hf(architectures=["LlamaForCausalLMEagle3"]), "eagle3"),
        (draft_hf(architectures=["Eagle3Speculator"], speculators_config={"algorithm": "eagle3"}), "eagle3"),
        (draft_hf(architectures=["EagleSpeculator"], speculators_model_type="eagle"), "eagle"),
        (draft_hf(architectures=["MedusaModel"], model_type="medusa"), "medusa"),
        (draft_hf(architectures=["MiMoMTPModel"], model_type="mimo_mtp"), "mtp"),
    ],
)
def test_files_tell_the_method(head: HFConfig, method: str) -> None:
    assert settled_method(None, head) == method
    assert settled_method("draft_model", head) == method
    assert settled_method(method, head) == method


def test_a_head_of_another_kind() -> None:
    with pytest.raises(ConfigError, match=r"method=eagle, but .*/head/config.json describes eagle3"):
        settled_method("eagle", draft_hf(architectures=["LlamaForCausalLMEagle3"]))


TARGET = make_hf_config(
    "target", Path("config.json"),
    {"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "vocab_size": 100, "max_position_embeddings": 64}, {},
)  # fmt: skip


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ({"hidden_size": 32, "vocab_size": 100}, "reads hidden states of 32 entries, those of target have 64"),
        ({"hidden_size": 64, "vocab_size": 90}, "has a vocabulary of 90 tokens, target one of 100"),
        ({"hidden_size": 32, "target_hidden_size": 63, "vocab_size": 100}, "hidden states of 63 entries"),
        ({"hidden_size": 64, "vocab_size": 100, "draft_vocab_size": 101}, "'draft_vocab_size' is 101"),
        ({"transformer_layer_config": {"hidden_size": 32}, "vocab_size": 100}, "hidden states of 32 entries"),
    ],
)
def test_a_head_of_another_model(raw: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_draft(TARGET, draft_hf(**raw), "eagle3")


@pytest.mark.parametrize(
    "raw",
    [
        {"hidden_size": 64, "vocab_size": 100, "draft_vocab_size": 40},
        {"hidden_size": 32, "target_hidden_size": 64},
        {},
    ],
)
def test_a_head_of_this_model(raw: dict[str, Any]) -> None:
    check_draft(TARGET, draft_hf(**raw), "eagle3")


def test_how_many_drafts_where_nobody_says() -> None:
    proposal = {"proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}], "algorithm": "eagle3"}

    def tokens(method: str, **raw: Any) -> int:
        draft = DraftSource(method, FOLDER, draft_hf(**raw)) if method not in ("ngram", "suffix") else None
        return config_of(hf(vocab_size=100, hidden_size=64), draft, method=method, model="x").num_tokens

    assert (tokens("ngram"), tokens("draft_model"), tokens("suffix")) == (4, 4, 24)
    assert tokens("eagle3", speculators_config=proposal) == 5
    assert tokens("medusa", medusa_num_heads=3) == 3
    assert tokens("medusa", medusa_num_heads=300) == MOST_TOKENS
    assert tokens("eagle") == 4


def test_a_draft_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TARGET.raw))
    missing = str(tmp_path / "nowhere" / "model.gguf")
    with pytest.raises(ModelNotFoundError, match=f"^speculative_config.model: no model at '{missing}'"):
        find_source(EngineArgs(model=str(tmp_path), speculative_config={"model": missing}))


def test_the_files_of_a_draft_are_found(tmp_path: Path) -> None:
    for name in ("target", "draft"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(TARGET.raw))
    model = str(tmp_path / "draft")
    keys = {"model": model, "num_speculative_tokens": 2, "max_model_len": 32}
    args = EngineArgs(model=str(tmp_path / "target"), speculative_config=keys)
    source = find_source(args)
    assert source.draft is not None and source.draft.files == ModelFiles(model, tmp_path / "draft", None)
    found = source.resolve(args, CPU).speculative
    assert (found.method, found.num_tokens, found.max_model_len) == ("draft_model", 2, 32)
    assert found.draft == source.draft


def words(*tokens: str, added: tuple[str, ...] = ()) -> Backend:
    backend = Backend(models.WordLevel({token: index for index, token in enumerate(tokens)}, unk_token="a"))
    backend.add_special_tokens(list(added))
    return backend


@pytest.mark.parametrize(
    ("draft", "said"),
    [
        (words("a", "b", "c"), ""),
        (words("a", "b"), ""),
        (words("a", "b", "c", "d", "e"), ""),
        (words("a", "b", "c", added=("<end>",)), ""),
        (words("a", "c", "b"), "calls token 1 'c', and the target 'b'"),
        (words("b", "c"), "calls token 0 'b', and the target 'a'"),
        (None, "has no tokenizer and 3 tokens, where the target has 100"),
    ],
)
def test_a_draft_model_has_the_tokens_of_its_target(draft: Backend | None, said: str, tmp_path: Path) -> None:
    target, folder = (
        load_tokenizer(save(words("a", "b", "c", added=("<stop>",)), tmp_path / "target")),
        tmp_path / "draft",
    )
    folder.mkdir()
    if draft is not None:
        save(draft, folder)
    source = DraftSource("draft_model", ModelFiles("draft", folder, None), draft_hf(vocab_size=3))
    if not said:
        check_draft_vocabulary(target, source, TARGET)
        return
    with pytest.raises(ConfigError, match=said) as caught:
        check_draft_vocabulary(target, source, TARGET)
    assert caught.value.field == "speculative_config.model"
