"""Which names of vLLM there are, by module, and where each leads.

A value is a module of Cadence that has the name, `module:other_name`, or `!key` for a name whose feature is missing:
the sentence under `key` in `MISSING` is what its use says. Modules are named without the leading `vllm.`; "" is the
package itself.
"""

from __future__ import annotations

_LLM = "cadence.entrypoints.llm"
_ENGINE = "cadence.engine.llm_engine"
_ASYNC = "cadence.entrypoints.async_engine:AsyncLLMEngine"
_ARGS = "cadence.entrypoints.engine_args"
_SAMPLING = "cadence.core.sampling_params"
_OUTPUTS = "cadence.core.outputs"
_PROMPTS = "cadence.engine.text.prompts"
_LIVE = "cadence.engine.text.live_request"
_METRICS = "cadence.engine.metrics.metric"
_PROCESSORS = "cadence.engine.text.logits_processors"
_ERRORS = "cadence.core.errors"
_DATA = "cadence.vllm.data"
_TOOLS = "cadence.vllm.tools"
_VERSION = "cadence.vllm.version"
_RESOLVED = "cadence.config.engine_config"
_BENCH = "cadence.vllm.bench_commands"
_BENCH_DATA = "cadence.vllm.bench_data"
_MEDIA, _ASSETS = "cadence.vllm.media_tools", "cadence.vllm.asset_files"
_CONFIG = "cadence.vllm.data:ConfigDict"

MISSING = {
    "media": "give pictures and videos as they are: what Pillow opened, arrays, bytes, or URLs in chats",
    "ray": "the engine joins a Ray cluster by itself, with distributed_executor_backend='ray'",
    "bench_data": "benchmarks draw random prompts, and read ShareGPT files and JSONL files of prompts (CustomDataset)",
    "bench": "a benchmark is run as a whole: add_cli_args(parser), then main(args)",
}

_POOLING = dict.fromkeys(
    (
        "PoolingOutput", "PoolingRequestOutput", "EmbeddingOutput", "EmbeddingRequestOutput", "ClassificationOutput",
        "ClassificationRequestOutput", "ScoringOutput", "ScoringRequestOutput",
    ),
    "cadence.core.pooled.pooled_outputs",
)  # fmt: skip
_POOLING_PARAMS = {"PoolingParams": "cadence.core.pooled.pooling_params"}
_PROMPT_NAMES = {
    **dict.fromkeys(("PromptType", "TextPrompt", "TokensPrompt"), _PROMPTS),
    "SingletonPrompt": f"{_PROMPTS}:PromptType",
    "EmbedsPrompt": f"{_PROMPTS}:VectorsPrompt",
    "ExplicitEncoderDecoderPrompt": f"{_PROMPTS}:EncoderDecoderPrompt",
    **dict.fromkeys(("MultiModalDataDict", "MultiModalDataBuiltins"), "cadence.vllm.data:MultiModalDataDict"),
    **dict.fromkeys(("DataPrompt", "ModalityData"), "!media"),
}
_LOGPROB_NAMES = {"Logprob": _OUTPUTS, "FlatLogprobs": "cadence.core.flat_logprobs"} | dict.fromkeys(
    ("PromptLogprobs", "SampleLogprobs", "LogprobsOnePosition"), _DATA
)
_PROCESSOR_NAMES = dict.fromkeys(
    ("LogitsProcessor", "AdapterLogitsProcessor", "RequestLogitsProcessor", "BatchUpdate", "MoveDirectionality"),
    _PROCESSORS,
)
_CLEANUP = {"cleanup_dist_env_and_memory": _TOOLS} | dict.fromkeys(
    ("destroy_model_parallel", "destroy_distributed_environment"), f"{_TOOLS}:nothing_to_destroy"
)
_CONFIGS = dict.fromkeys(
    (
        "CompilationConfig", "ProfilerConfig", "AttentionConfig", "StructuredOutputsConfig", "SpeculativeConfig",
        "KVTransferConfig", "KVEventsConfig", "PoolerConfig", "ReasoningConfig", "ObservabilityConfig",
    ),
    _CONFIG,
)  # fmt: skip
_CONFIGS |= {"VllmConfig": f"{_RESOLVED}:EngineConfig"} | dict.fromkeys(
    ("ModelConfig", "CacheConfig", "SchedulerConfig", "DeviceConfig", "LoadConfig"), _RESOLVED
)
_UUID = {"random_uuid": _DATA, "Counter": _DATA}
_PARSER = {"FlexibleArgumentParser": "cadence.vllm.argument_parser"}
_TOKENIZER = {"get_tokenizer": _TOOLS, "TokenizerLike": "cadence.text.tokenizer:Tokenizer"}

_DATASETS = dict.fromkeys(
    (
        "SampleRequest",
        "BenchmarkDataset",
        "RandomDataset",
        "PrefixRepetitionRandomDataset",
        "ShareGPTDataset",
        "CustomDataset",
    ),
    _BENCH_DATA,
)
_DATASETS |= dict.fromkeys(
    (
        "SonnetDataset", "BurstGPTDataset", "HuggingFaceDataset", "ConversationDataset", "InstructCoderDataset",
        "MTBenchDataset", "AIMODataset", "NextEditPredictionDataset", "SpecBench",
    ),
    "!bench_data",
)  # fmt: skip
_DATASETS |= dict.fromkeys(("RandomMultiModalDataset", "VisionArenaDataset", "ASRDataset", "MMVUDataset"), "!media")
_DATASETS |= dict.fromkeys(("get_samples", "add_dataset_parser"), "cadence.vllm.bench_samples")
_REQUEST_FUNCS = dict.fromkeys(
    (
        "RequestFuncInput", "RequestFuncOutput", "RequestFunc", "ASYNC_REQUEST_FUNCS", "OPENAI_COMPATIBLE_BACKENDS",
        "async_request_openai_completions", "async_request_openai_chat_completions",
    ),
    "cadence.vllm.bench_requests",
)  # fmt: skip

_SERIAL = dict.fromkeys(
    (
        "EMBED_DTYPES", "ENDIANNESS", "MetadataItem", "build_metadata_items", "decode_pooling_output",
        "binary2tensor", "tensor2binary",
    ),
    "cadence.vllm.serial",
)  # fmt: skip

MODULES: dict[str, dict[str, str]] = {
    "": {
        "__version__": _VERSION,
        "__version_tuple__": _VERSION,
        "LLM": _LLM,
        "LLMEngine": _ENGINE,
        "AsyncLLMEngine": _ASYNC,
        "EngineArgs": _ARGS,
        "AsyncEngineArgs": _ARGS,
        "SamplingParams": _SAMPLING,
        **_POOLING_PARAMS,
        "ModelRegistry": "cadence.core.model.model_registry",
        "RequestOutput": _OUTPUTS,
        "CompletionOutput": _OUTPUTS,
        **dict.fromkeys(("PromptType", "TextPrompt", "TokensPrompt"), _PROMPTS),
        **_POOLING,
        "initialize_ray_cluster": "!ray",
    },
    "version": {"__version__": _VERSION, "__version_tuple__": _VERSION},
    "sampling_params": {
        **dict.fromkeys(("SamplingParams", "BeamSearchParams", "RequestOutputKind"), _SAMPLING),
        "StructuredOutputsParams": "cadence.core.structured_outputs",
        "GuidedDecodingParams": "cadence.core.structured_outputs:StructuredOutputsParams",
        "RepetitionDetectionParams": "cadence.core.repetition",
        "SamplingType": _DATA,
        "LogitsProcessor": _SAMPLING,
    },
    "pooling_params": _POOLING_PARAMS,
    "outputs": {"RequestOutput": _OUTPUTS, "CompletionOutput": _OUTPUTS, **_POOLING},
    "beam_search": dict.fromkeys(("BeamSearchOutput", "BeamSearchSequence"), _OUTPUTS),
    "inputs": _PROMPT_NAMES,
    "inputs.data": {**_PROMPT_NAMES, "StreamingInput": _LIVE},
    "inputs.llm": _PROMPT_NAMES,
    "logprobs": _LOGPROB_NAMES,
    "sequence": {**_LOGPROB_NAMES, "RequestMetrics": _OUTPUTS},
    "lora.request": {"LoRARequest": "cadence.core.lora_request"},
    "engine.arg_utils": {"EngineArgs": _ARGS, "AsyncEngineArgs": _ARGS},
    "engine.llm_engine": {"LLMEngine": _ENGINE},
    "engine.async_llm_engine": {"AsyncLLMEngine": _ASYNC, "AsyncEngineDeadError": f"{_ERRORS}:EngineDeadError"},
    "engine.protocol": {"EngineClient": _ASYNC, "StreamingInput": _LIVE},
    "engine.metrics": {"Metrics": _METRICS + ":Metric"},
    "v1.engine.llm_engine": {"LLMEngine": _ENGINE},
    "v1.engine.async_llm": {"AsyncLLM": _ASYNC, "StreamingInput": _LIVE},
    "v1.engine.exceptions": {"EngineDeadError": _ERRORS, "EngineGenerateError": f"{_ERRORS}:CadenceError"},
    "v1.metrics.reader": {
        **dict.fromkeys(("Metric", "Counter", "Gauge", "Histogram", "Vector"), _METRICS),
    },
    "v1.sample.logits_processor": _PROCESSOR_NAMES,
    "v1.sample.logits_processor.interface": _PROCESSOR_NAMES,
    "v1.sample.logits_processor.builtin": {"process_dict_updates": _PROCESSORS},
    "entrypoints.llm": {"LLM": _LLM},
    "entrypoints.pooling.utils": _SERIAL,
    "entrypoints.chat_utils": {"ChatCompletionMessageParam": _DATA, "load_chat_template": _TOOLS},
    "utils": {**_UUID, **_PARSER, "get_open_port": _TOOLS, "get_ip": _TOOLS},
    "utils.argparse_utils": _PARSER,
    "utils.counter": {"Counter": _DATA},
    "utils.network_utils": {"get_open_port": _TOOLS, "get_ip": _TOOLS},
    "utils.system_utils": {"set_ulimit": _TOOLS},
    "utils.print_utils": {"print_embeddings": _TOOLS},
    "utils.serial_utils": _SERIAL,
    "utils.torch_utils": {"set_random_seed": _TOOLS},
    "model_executor": {"set_random_seed": _TOOLS},
    "model_executor.utils": {"set_random_seed": _TOOLS},
    "model_executor.models": {"ModelRegistry": "cadence.core.model.model_registry"},
    "transformers_utils.tokenizer": _TOKENIZER,
    "tokenizers": _TOKENIZER,
    "distributed": _CLEANUP,
    "distributed.parallel_state": _CLEANUP,
    "config": _CONFIGS,
    "config.compilation": {"CompilationConfig": _CONFIG},
    "config.pooler": {"PoolerConfig": _CONFIG},
    "config.kv_transfer": {"KVTransferConfig": _CONFIG},
    "platforms": {"current_platform": _TOOLS},
    "logger": {"init_logger": _DATA},
    "usage.usage_lib": {"UsageContext": _DATA},
    "exceptions": {"VLLMValidationError": f"{_ERRORS}:InvalidRequestError"},
    "multimodal": {"MultiModalDataDict": _DATA}
    | dict.fromkeys(("MultiModalRegistry", "MULTIMODAL_REGISTRY"), "!media"),
    "multimodal.utils": dict.fromkeys(
        ("fetch_audio", "fetch_image", "fetch_video", "encode_image_base64", "encode_image_url"), _MEDIA
    ),
    "multimodal.image": dict.fromkeys(("convert_image_mode", "rescale_image_size", "rgba_to_rgb"), _MEDIA),
    "assets.image": {"ImageAsset": _ASSETS},
    "assets.audio": {"AudioAsset": _ASSETS},
    "assets.video": {"VideoAsset": _ASSETS},
    "benchmarks.datasets": _DATASETS,
    "benchmarks.lib.endpoint_request_func": _REQUEST_FUNCS,
    "benchmarks.serve": {
        "add_cli_args": f"{_BENCH}:add_serve_args",
        "main": f"{_BENCH}:serve",
        "main_async": f"{_BENCH}:serve_async",
        **dict.fromkeys(("benchmark", "calculate_metrics", "get_request", "BenchmarkMetrics", "TaskType"), "!bench"),
        **_REQUEST_FUNCS,
        "SampleRequest": _BENCH_DATA,
    },
    "benchmarks.latency": {"add_cli_args": f"{_BENCH}:add_latency_args", "main": f"{_BENCH}:latency"},
    "benchmarks.throughput": {
        "add_cli_args": f"{_BENCH}:add_throughput_args",
        "main": f"{_BENCH}:throughput",
        **dict.fromkeys(("run_vllm", "run_vllm_async", "run_vllm_chat", "run_hf", "get_requests"), "!bench"),
    },
    "v1.executor.ray_utils": {"initialize_ray_cluster": "!ray"},
}

# Modules that programs run with `python -m`, and the words of the command `cadence` they stand for.
COMMANDS = {
    "entrypoints.openai.api_server": "serve",
    "entrypoints.openai.run_batch": "run-batch",
    "entrypoints.cli.main": "",
    "benchmarks.serve": "bench serve",
    "benchmarks.latency": "bench latency",
    "benchmarks.throughput": "bench throughput",
    "__main__": "",
}
