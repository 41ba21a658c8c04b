"""vLLM's names: those that programs import are there, take the calls programs make, and lead to Cadence's own."""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cadence
import cadence.vllm
from cadence.config.version import __version__
from cadence.core.errors import ConfigError, ModelNotFoundError
from cadence.vllm import launch
from cadence.vllm.missing import MissingFeatureError
from cadence.vllm.names import MISSING, MODULES
from tests.arch.source import ROOT

# What `from vllm import ...` offers there.
PUBLIC = """\
__version__ __version_tuple__ LLM ModelRegistry PromptType TextPrompt TokensPrompt SamplingParams RequestOutput
CompletionOutput PoolingOutput PoolingRequestOutput EmbeddingOutput EmbeddingRequestOutput ClassificationOutput
ClassificationRequestOutput ScoringOutput ScoringRequestOutput LLMEngine EngineArgs AsyncLLMEngine AsyncEngineArgs
initialize_ray_cluster PoolingParams
"""

# Modules and names that programs for text import, as the peer spells them.
IMPORTED = {
    "sampling_params": "SamplingParams BeamSearchParams StructuredOutputsParams GuidedDecodingParams RequestOutputKind "
    "RepetitionDetectionParams SamplingType",
    "outputs": "RequestOutput CompletionOutput PoolingRequestOutput EmbeddingRequestOutput",
    "inputs": "PromptType TextPrompt TokensPrompt SingletonPrompt EmbedsPrompt ExplicitEncoderDecoderPrompt",
    "logprobs": "Logprob PromptLogprobs SampleLogprobs FlatLogprobs",
    "sequence": "Logprob PromptLogprobs RequestMetrics",
    "pooling_params": "PoolingParams",
    "lora.request": "LoRARequest",
    "beam_search": "BeamSearchOutput BeamSearchSequence",
    "engine.arg_utils": "EngineArgs AsyncEngineArgs",
    "engine.async_llm_engine": "AsyncLLMEngine",
    "engine.llm_engine": "LLMEngine",
    "engine.protocol": "EngineClient StreamingInput",
    "v1.engine.async_llm": "AsyncLLM StreamingInput",
    "v1.engine.llm_engine": "LLMEngine",
    "v1.engine.exceptions": "EngineDeadError EngineGenerateError",
    "v1.metrics.reader": "Counter Gauge Histogram Vector Metric",
    "v1.sample.logits_processor": "LogitsProcessor AdapterLogitsProcessor RequestLogitsProcessor BatchUpdate",
    "v1.sample.logits_processor.builtin": "process_dict_updates",
    "utils": "FlexibleArgumentParser random_uuid Counter",
    "utils.argparse_utils": "FlexibleArgumentParser",
    "utils.torch_utils": "set_random_seed",
    "utils.network_utils": "get_open_port get_ip",
    "entrypoints.llm": "LLM",
    "entrypoints.chat_utils": "load_chat_template ChatCompletionMessageParam",
    "distributed": "cleanup_dist_env_and_memory",
    "distributed.parallel_state": "destroy_model_parallel destroy_distributed_environment",
    "model_executor.models": "ModelRegistry",
    "transformers_utils.tokenizer": "get_tokenizer",
    "tokenizers": "get_tokenizer",
    "config": "CompilationConfig ProfilerConfig VllmConfig KVTransferConfig PoolerConfig",
    "config.pooler": "PoolerConfig",
    "utils.print_utils": "print_embeddings",
    "platforms": "current_platform",
    "logger": "init_logger",
    "usage.usage_lib": "UsageContext",
    "exceptions": "VLLMValidationError",
    "assets.image": "ImageAsset",
    "assets.audio": "AudioAsset",
    "multimodal": "MultiModalDataDict",
    "benchmarks.datasets": "SampleRequest RandomDataset ShareGPTDataset CustomDataset BenchmarkDataset get_samples",
    "benchmarks.lib.endpoint_request_func": "RequestFuncInput RequestFuncOutput ASYNC_REQUEST_FUNCS",
    "benchmarks.serve": "add_cli_args main",
    "benchmarks.latency": "add_cli_args main",
    "benchmarks.throughput": "add_cli_args main",
    "multimodal.utils": "fetch_image",
    "version": "__version__",
}

# Calls as programs for vLLM write them: a method, and the names of its arguments in the order they may stand.
SIGNATURES = {
    "entrypoints.llm:LLM.generate": "prompts sampling_params",
    "entrypoints.llm:LLM.chat": "messages sampling_params use_tqdm lora_request chat_template "
    "chat_template_content_format add_generation_prompt continue_final_message tools chat_template_kwargs",
    "entrypoints.llm:LLM.enqueue": "prompts sampling_params lora_request priority use_tqdm",
    "entrypoints.llm:LLM.encode": "prompts pooling_params",
    "entrypoints.llm:LLM.embed": "prompts",
    "entrypoints.llm:LLM.classify": "prompts",
    "entrypoints.llm:LLM.reward": "prompts",
    "entrypoints.llm:LLM.score": "data_1 data_2",
    "entrypoints.llm:LLM.beam_search": "prompts params lora_request use_tqdm concurrency_limit",
    "entrypoints.llm:LLM.from_engine_args": "engine_args",
    "entrypoints.llm:LLM.reset_prefix_cache": "reset_running_requests reset_connector",
    "entrypoints.llm:LLM.reset_mm_cache": "",
    "engine.llm_engine:LLMEngine.reset_mm_cache": "",
    "engine.llm_engine:LLMEngine.reset_encoder_cache": "",
    "v1.engine.async_llm:AsyncLLM.reset_mm_cache": "",
    "v1.engine.async_llm:AsyncLLM.reset_encoder_cache": "",
    "engine.llm_engine:LLMEngine.add_request": "request_id prompt params arrival_time lora_request",
    "engine.llm_engine:LLMEngine.abort_request": "request_ids",
    "engine.llm_engine:LLMEngine.from_engine_args": "engine_args usage_context",
    "engine.llm_engine:LLMEngine.step": "",
    "engine.llm_engine:LLMEngine.has_unfinished_requests": "",
    "engine.llm_engine:LLMEngine.get_num_unfinished_requests": "",
    "v1.engine.async_llm:AsyncLLM.generate": "prompt sampling_params request_id",
    "v1.engine.async_llm:AsyncLLM.encode": "prompt pooling_params request_id",
    "v1.engine.async_llm:AsyncLLM.abort": "request_id",
    "v1.engine.async_llm:AsyncLLM.shutdown": "timeout",
    "engine.arg_utils:EngineArgs": "model",
    "engine.arg_utils:EngineArgs.add_cli_args": "parser",
    "engine.arg_utils:EngineArgs.from_cli_args": "args",
    "engine.arg_utils:AsyncEngineArgs.add_cli_args": "parser async_args_only",
    "lora.request:LoRARequest": "lora_name lora_int_id lora_path base_model_name",
    "sampling_params:BeamSearchParams": "beam_width max_tokens ignore_eos temperature length_penalty",
    "outputs:RequestOutput": "request_id prompt prompt_token_ids prompt_logprobs outputs finished metrics lora_request "
    "encoder_prompt encoder_prompt_token_ids num_cached_tokens num_cache_creation_tokens",
    "logprobs:Logprob": "logprob rank decoded_token",
}
KEYWORDS = {
    "entrypoints.llm:LLM.generate": "use_tqdm lora_request priority tokenization_kwargs mm_processor_kwargs",
    "entrypoints.llm:LLM.chat": "tokenization_kwargs mm_processor_kwargs",
    "entrypoints.llm:LLM.wait_for_completion": "use_tqdm",
    "entrypoints.llm:LLM.encode": "truncate_prompt_tokens use_tqdm lora_request pooling_task tokenization_kwargs",
    "entrypoints.llm:LLM.embed": "truncate_prompt_tokens use_tqdm pooling_params lora_request tokenization_kwargs",
    "entrypoints.llm:LLM.classify": "use_tqdm pooling_params lora_request tokenization_kwargs",
    "entrypoints.llm:LLM.score": "truncate_prompt_tokens use_tqdm pooling_params lora_request chat_template",
    "engine.llm_engine:LLMEngine.add_request": "tokenization_kwargs trace_headers priority session_id prompt_text",
    "engine.llm_engine:LLMEngine.from_engine_args": "stat_loggers enable_multiprocessing",
    "v1.engine.async_llm:AsyncLLM.from_engine_args": "start_engine_loop usage_context stat_loggers",
    "v1.engine.async_llm:AsyncLLM.generate": "prompt_text lora_request tokenization_kwargs trace_headers priority "
    "data_parallel_rank session_id reasoning_ended reasoning_parser_kwargs",
}


def resolve(where: str) -> Any:
    module, _, path = where.partition(":")
    found: Any = importlib.import_module(f"cadence.vllm.{module}")
    for name in path.split("."):
        found = getattr(found, name)
    return found


def test_every_name_of_the_table_leads_somewhere() -> None:
    for module, names in MODULES.items():
        home = importlib.import_module(f"cadence.vllm.{module}".rstrip("."))
        for name in names:
            assert getattr(home, name) is not None, f"{module}.{name}"
            assert getattr(home, name) is getattr(home, name)


def test_public_names() -> None:
    assert set(PUBLIC.split()) == set(MODULES[""])
    for name in PUBLIC.split():
        assert hasattr(cadence.vllm, name)
    shared = {name for name in PUBLIC.split() if name in cadence.__all__ and not name.startswith("__")}
    assert shared >= {"LLM", "LLMEngine", "AsyncLLMEngine", "EngineArgs", "AsyncEngineArgs", "SamplingParams"}
    assert all(getattr(cadence, name) is getattr(cadence.vllm, name) for name in shared)


@pytest.mark.parametrize("module", IMPORTED)
def test_modules_that_programs_import(module: str) -> None:
    home = importlib.import_module(f"cadence.vllm.{module}")
    for name in IMPORTED[module].split():
        assert hasattr(home, name), name


@pytest.mark.parametrize("where", SIGNATURES)
def test_positional_forms(where: str) -> None:
    found = resolve(where)
    call = found.__init__ if isinstance(found, type) and not issubclass(found, tuple) else found
    parameters = list(inspect.signature(call).parameters.values())
    names = [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    expected = SIGNATURES[where].split()
    assert [name for name in names if name != "self"][: len(expected)] == expected


@pytest.mark.parametrize("where", KEYWORDS)
def test_keywords(where: str) -> None:
    parameters = inspect.signature(resolve(where)).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    assert takes_any or set(KEYWORDS[where].split()) <= set(parameters)


def test_a_missing_feature_is_told_when_it_is_used() -> None:
    from cadence.vllm.benchmarks.datasets import VisionArenaDataset

    with pytest.raises(MissingFeatureError, match=r"VisionArenaDataset cannot be used: .*give pictures and videos as"):
        VisionArenaDataset("cherry")
    assert all(sentence == sentence.strip() and sentence for sentence in MISSING.values())


def test_what_is_in_no_table_is_told_at_import() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"cadence\.vllm\.worker has no counterpart"):
        importlib.import_module("cadence.vllm.worker.spam")
    with pytest.raises(ImportError, match="Spam"):
        exec("from cadence.vllm.outputs import Spam")


def test_star_import_brings_the_public_names() -> None:
    names: dict[str, Any] = {}
    exec("from cadence.vllm.sampling_params import *", names)
    assert {"SamplingParams", "BeamSearchParams", "RequestOutputKind"} <= set(names)


def test_the_version_names_both() -> None:
    assert cadence.vllm.__version__.endswith(f"+cadence.{__version__}")
    assert cadence.vllm.__version__.startswith(".".join(map(str, cadence.vllm.__version_tuple__)))


def test_engine_args_take_names_that_ask_for_nothing() -> None:
    args = cadence.EngineArgs("some/model", tensor_parallel_size=1, dtype="float16", trust_remote_code=False)
    assert (args.model, args.dtype) == ("some/model", "float16")
    assert cadence.AsyncEngineArgs(model="m", enforce_eager=True).enforce_eager
    with pytest.raises(ConfigError, match="did you mean max_model_len"):
        cadence.EngineArgs("m", max_modl_len=5)
    with pytest.raises(ConfigError, match="not shared out among ranks"):
        cadence.EngineArgs("m", decode_context_parallel_size=8)


def parsed(*argv: str) -> argparse.Namespace:
    from cadence.vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    cadence.EngineArgs.add_cli_args(parser)
    parser.add_argument("--my_own", type=int, default=3)
    parser.set_defaults(model="some/model")
    return parser.parse_args(list(argv))


def test_a_scripts_parser_has_every_engine_flag_and_its_default() -> None:
    args = parsed()
    assert (args.model, args.my_own, args.max_model_len, args.tensor_parallel_size) == ("some/model", 3, None, 1)
    assert cadence.EngineArgs.from_cli_args(args).model == "some/model"
    assert cadence.AsyncEngineArgs.from_cli_args(args).gpu_memory_utilization == 0.92


def test_flags_in_every_spelling() -> None:
    args = parsed("--max_model_len", "2k", "--my-own=5", "--hf-overrides.rope_theta", "1e6", "--enforce-eager")
    assert (args.max_model_len, args.my_own, args.hf_overrides, args.enforce_eager) == (
        2000,
        5,
        {"rope_theta": 1e6},
        True,
    )
    assert parsed("--max-model-len=auto").max_model_len == -1
    assert cadence.EngineArgs.from_cli_args(parsed("--max-model-len=auto")).max_model_len == -1
    with pytest.raises(SystemExit):
        parsed("--max-model-len", "many")
    with pytest.raises(SystemExit):
        parsed("--no-such-flag")


def test_a_scripts_flags_may_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "flags.json"
    file.write_text(json.dumps({"max-model-len": 64, "my_own": 7}))
    args = parsed("--config", str(file), "--max-model-len", "32")
    assert (args.max_model_len, args.my_own) == (32, 7)


SCRIPT = """
import multiprocessing, subprocess, sys
import vllm
from vllm.lora.request import LoRARequest

def child(queue):
    import vllm.outputs
    queue.put(vllm.outputs.RequestOutput.__module__)

if __name__ == "__main__":
    assert vllm.__file__ and __file__.endswith(sys.argv[0]), sys.argv
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    inside = queue.get(timeout=60)
    process.join()
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "--version"]
    version = subprocess.run(command, capture_output=True, text=True).stdout
    print([sys.argv[1:], inside, version, vllm.LLM.__module__, LoRARequest("a", 1).name])
"""


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cadence.vllm", *words]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=cwd, env=environment)


def test_a_script_that_imports_vllm_runs_as_it_is(tmp_path: Path) -> None:
    """Also what it starts itself: processes by spawn, and Python by name."""
    (tmp_path / "script.py").write_text(SCRIPT)
    done = run("script.py", "--flag", "x", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    words = [["--flag", "x"], "cadence.core.outputs", f"cadence {__version__}\n", "cadence.entrypoints.llm", "a"]
    assert done.stdout.strip() == str(words)


def test_code_modules_and_exit_statuses(tmp_path: Path) -> None:
    done = run("-c", "import sys, vllm; print(sys.argv, vllm.SamplingParams.__name__); sys.exit(7)", "a", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (7, "['-c', 'a'] SamplingParams\n")
    done = run("-m", "vllm.entrypoints.openai.api_server", "--help", cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.startswith("usage: cadence serve")


def test_models_under_other_names(tmp_path: Path) -> None:
    program = "from cadence.config.reference import find_model; find_model(sys.argv[1])"
    done = run("--model-map", "org/a=/nowhere/b", "-c", f"import sys; {program}", "org/a", cwd=tmp_path)
    assert "org/a is taken to be /nowhere/b (--model-map)" in done.stderr
    assert ModelNotFoundError.__name__ in done.stderr and "/nowhere/b" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--model-map", "x"], "expected OLD=NEW"),
        (["--model-map"], "expected OLD=NEW"),
        (["--modelmap", "a=b"], "unknown option --modelmap"),
        (["--model-map", "a=b"], "no program to run"),
    ],
)
def test_bad_words_get_one_line(words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        launch.main(words)
    assert left.value.code == 2 and complaint in capsys.readouterr().err


def test_the_folder_for_pythonpath(capsys: pytest.CaptureFixture[str]) -> None:
    assert launch.main(["--path"]) == 0
    assert (Path(capsys.readouterr().out.strip()) / "vllm" / "__init__.py").is_file()
    assert launch.main([]) == 2


def test_python_m_cadence_is_the_command() -> None:
    command = [sys.executable, "-m", "cadence", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.stdout == f"cadence {__version__}\n"
