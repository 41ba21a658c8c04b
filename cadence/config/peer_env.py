"""Every environment variable of vLLM's (2026-08, and some that it had before), and whether it works here. Others that
begin with VLLM_ have no effect and are named."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from cadence.config.args import EngineArgs
from cadence.config.peers.peer_flag import Support
from cadence.core.errors import ConfigError

logger = logging.getLogger("cadence.config")

NOT_READ = "it is not read"


@dataclass(frozen=True, slots=True)
class PeerVariable:
    name: str
    support: Support
    why: str  # of one that works: what it does here


def _works(name: str, what: str) -> PeerVariable:
    return PeerVariable(name, Support.WORKS, what)


def _no_effect(name: str, why: str) -> PeerVariable:
    return PeerVariable(name, Support.NO_EFFECT, why)


def _refused(name: str, why: str) -> PeerVariable:
    return PeerVariable(name, Support.REFUSED, why)


def _all(why: str, names: str) -> list[PeerVariable]:
    """Of several without effect. names: without VLLM_, with white space between them"""
    return [_no_effect(f"VLLM_{name}", why) for name in names.split()]


VARIABLES = (
    _works("VLLM_API_KEY", "as `--api-key`, when none is given"),
    _works("VLLM_LOGGING_LEVEL", "as `CADENCE_LOG_LEVEL`"),
    _no_effect("VLLM_CONFIGURE_LOGGING", "logging is set up by the commands alone, never by `import cadence`"),
    _refused("VLLM_LOGGING_CONFIG_PATH", "logs are lines on stderr; set the level with CADENCE_LOG_LEVEL"),
    _refused("VLLM_USE_MODELSCOPE", "models come from the Hugging Face hub, or from a folder"),
    _works("VLLM_CACHE_ROOT", "as `CADENCE_CACHE`"),
    _no_effect("VLLM_CONFIG_ROOT", "there is no folder of settings; `--config` names a file"),
    _no_effect("VLLM_HOST_IP", "it is for several machines; the server listens on `--host`"),
    _no_effect("VLLM_PORT", "it is for several machines; the server listens on `--port`"),
    _works("VLLM_CPU_KVCACHE_SPACE", "size of the KV cache on the CPU, in GiB"),
    _no_effect("VLLM_CPU_OMP_THREADS_BIND", "threads stay on the cores of this process; `--cpu-threads` counts them"),
    _no_effect("VLLM_CPU_NUM_OF_RESERVED_CPU", "`--cpu-threads` says how many threads compute"),
    _no_effect("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "the model's own length is the limit; hf_overrides may extend it"),
    _works("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "as `--allow-runtime-lora-updating`"),
    _works("VLLM_SERVER_DEV_MODE", "as `--server-dev-mode`"),
    _works("VLLM_SKIP_MODEL_NAME_VALIDATION", "as `--skip-model-name-validation`"),
    _works("VLLM_BATCH_INVARIANT", "as `--deterministic`; on a CPU it always holds"),
    _no_effect("VLLM_USE_V1", "there is one engine"),
    _no_effect("VLLM_USE_V2_MODEL_RUNNER", "there is one runner"),
    _no_effect("VLLM_ENABLE_V1_MULTIPROCESSING", "a server's engine has a process of its own, an `LLM` has not"),
    _no_effect("VLLM_WORKER_MULTIPROC_METHOD", "the engine's process is a fresh one"),
    _works("VLLM_PP_LAYER_PARTITION", "as `--pp-layer-partition`, when none is given"),
    _works("VLLM_NO_USAGE_STATS", "nothing is ever sent"),
    _works("VLLM_DO_NOT_TRACK", "nothing is ever sent"),
    _works("DO_NOT_TRACK", "nothing is ever sent"),
    _no_effect("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "idle connections are kept for 65 seconds"),
    _works("VLLM_MAX_N_SEQUENCES", "as `--max-completions`, when none is given"),
    _no_effect("VLLM_PLUGINS", "those of vLLM are not loaded; of `cadence.general_plugins` all are"),
    _no_effect("VLLM_ATTENTION_BACKEND", "kernels are chosen for the device; `--kernels` names others"),
    _no_effect("VLLM_TARGET_DEVICE", "the device is found when the engine starts; `--device` names it"),
    _no_effect("VLLM_USE_FASTOKENS", "tokenizers are those of the package tokenizers"),
    _no_effect("VLLM_ENGINE_ITERATION_TIMEOUT_S", "heartbeats tell a hanging engine, which is started again"),
    _no_effect("VLLM_ENGINE_READY_TIMEOUT_S", "an engine may take as long as it needs to start"),
    _works("VLLM_USAGE_STATS_SERVER", "nothing is ever sent"),
    _works("VLLM_USAGE_SOURCE", "nothing is ever sent"),
    _no_effect("VLLM_LOGGING_STREAM", "logs are lines on stderr; redirect it"),
    _no_effect("VLLM_LOG_STATS_INTERVAL", "the numbers are on /metrics"),
    _no_effect("VLLM_CPU_ATTN_SPLIT_KV", "kernels are chosen for the device; `--kernels` names others"),
    _no_effect("VLLM_KEEP_ALIVE_ON_ENGINE_DEATH", "an engine that dies is started again, and its requests go on"),
    _no_effect("VLLM_TEST_FORCE_LOAD_FORMAT", "`--load-format` says it"),
    _no_effect("VLLM_PREFIX_CACHE_RETENTION_INTERVAL", "blocks are kept until their room is needed"),
    _refused("VLLM_LORA_RESOLVER_CACHE_DIR", "adapters are named by --lora-modules, or loaded by requests"),
    _refused("VLLM_LORA_RESOLVER_HF_REPO_LIST", "adapters are named by --lora-modules, or loaded by requests"),
    _no_effect("VLLM_LOG_BATCHSIZE_INTERVAL", "the numbers are on /metrics"),
    _no_effect("VLLM_USE_RUST_FRONTEND", "there is one server"),
    _no_effect("VLLM_USE_RUST_BENCH", "there is one `bench serve`"),
    _no_effect("VLLM_RUST_FRONTEND_PATH", "there is one server"),
    _no_effect("VLLM_V1_OUTPUT_PROC_CHUNK_SIZE", "outputs are delivered in parts of 64 updates"),
    _refused("VLLM_MODEL_REDIRECT_PATH", "the model that is named is the one that is loaded; name the folder"),
    _refused("VLLM_MOE_ROUTING_SIMULATION_STRATEGY", "tokens go to the experts that the router chooses"),
    _no_effect("VLLM_ENFORCE_STRICT_TOOL_CALLING", "`strict` of a tool says it; demanded calls keep their schema"),
    _works("VLLM_COMPUTE_NANS_IN_LOGITS", "a request whose logits are no numbers always ends with an error"),
    _works("VLLM_RAISE_ON_LOGIT_NANS", "a request whose logits are no numbers always ends with an error"),
    _works("VLLM_ENABLE_RESPONSES_API_STORE", "responses are stored, unless a request says `store: false`"),
    _refused("VLLM_ENABLE_COHERE_API", "chats are in OpenAI's and Anthropic's words"),
    _no_effect("VLLM_USE_EXPERIMENTAL_PARSER_CONTEXT", "tools are called by clients"),
    _no_effect("VLLM_GPT_OSS_SYSTEM_TOOL_MCP_LABELS", "tools are called by clients"),
    _no_effect("VLLM_GPT_OSS_HARMONY_SYSTEM_INSTRUCTIONS", "messages stand where the chat template puts them"),
    _refused("VLLM_SYSTEM_START_DATE", "chat templates have the date of the day; give another in chat_template_kwargs"),
    _no_effect("VLLM_TOOL_JSON_ERROR_AUTOMATIC_RETRY", "a model is not asked again; calls can be held to their schema"),
    _refused("VLLM_USE_SIMPLE_KV_OFFLOAD", "the KV cache stays on the device of its engine"),
    _works("VLLM_MAX_AUDIO_CLIP_FILESIZE_MB", "as `--max-audio-bytes`, in MiB, when none is given"),
    _works("VLLM_MAX_AUDIO_DECODE_DURATION_S", "as `--max-audio-seconds`, when none is given"),
    _no_effect("VLLM_MAX_AUDIO_DECODE_BYTES", "samples of all recordings together take at most 1 GiB"),
    _no_effect("VLLM_MAX_AUDIO_PREPROCESS_WORKERS", "two threads decode recordings"),
    _works("VLLM_ASSETS_CACHE", "where `AudioAsset` of scripts finds its files (docs/using/from_vllm.md)"),
    _no_effect("VLLM_MM_HASHER_ALGORITHM", "contents are told apart by their SHA-256"),
    _no_effect("VLLM_ASSETS_CACHE_MODEL_CLEAN", "files of scripts stay where they are"),
    *_all("what was fetched is not kept on disk; prefixes and what a tower made of a picture are, in memory", """
        MEDIA_CACHE MEDIA_CACHE_MAX_SIZE_MB MEDIA_CACHE_TTL_HOURS
    """),
    _no_effect("VLLM_MEDIA_CONNECTOR", "files are fetched in one way"),
    _works("VLLM_IMAGE_FETCH_TIMEOUT", "as `--image-fetch-timeout`, when none is given"),
    _works("VLLM_VIDEO_FETCH_TIMEOUT", "as `--video-fetch-timeout`, when none is given"),
    _works("VLLM_AUDIO_FETCH_TIMEOUT", "as `--audio-fetch-timeout`, when none is given"),
    _works("VLLM_MAX_IMAGE_PIXELS", "as `--max-image-pixels`, when none is given"),
    _works("VLLM_MEDIA_URL_ALLOW_REDIRECTS", "as `--media-url-allow-redirects`, when it is not given"),
    _no_effect("VLLM_VIDEO_LOADER_BACKEND", "videos are read by PyAV"),
    _no_effect("VLLM_MEDIA_LOADING_THREAD_COUNT", "two threads decode pictures, sixteen fetch files"),
    _no_effect("VLLM_MEDIA_FETCH_MAX_RETRIES", "what cannot be fetched at once is an error"),
    *_all("encoders run in the engine that decodes", """
        EC_SIDE_CHANNEL_HOST EC_SIDE_CHANNEL_PORT OBJECT_STORAGE_SHM_BUFFER_NAME
    """),
    *_all("it is for devices that this version does not run on", """
        ROCM_SLEEP_MEM_CHUNK_SIZE ZENTORCH_WEIGHT_PREPACK XLA_CACHE_PATH XLA_CHECK_RECOMPILATION XLA_USE_SPMD
        ROCM_USE_AITER ROCM_USE_AITER_CUSTOM_AR ROCM_USE_AITER_LINEAR ROCM_USE_AITER_LINEAR_HIPBMM
        ROCM_USE_AITER_MOE ROCM_USE_AITER_MOE_SITUV2_A8W4 ROCM_AITER_MOE_DISPATCH_POLICY ROCM_USE_AITER_RMSNORM
        ROCM_USE_AITER_MLA ROCM_AITER_MLA_ASM_PADDING ROCM_USE_AITER_MHA ROCM_USE_AITER_FP4_ASM_GEMM
        ROCM_USE_AITER_TRITON_ROPE ROCM_USE_AITER_FP8BMM ROCM_USE_AITER_FP4BMM ROCM_USE_AITER_UNIFIED_ATTENTION
        ROCM_USE_AITER_FUSION_SHARED_EXPERTS ROCM_USE_AITER_TRITON_GEMM ROCM_USE_SKINNY_GEMM ROCM_FP8_PADDING
        ROCM_MOE_PADDING ROCM_SHUFFLE_KV_CACHE_LAYOUT ROCM_QUICK_REDUCE_QUANTIZATION
        ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16 ROCM_QUICK_REDUCE_MAX_SIZE_BYTES_MB ROCM_QUICK_REDUCE_MIN_SIZE_BYTES_MB
        ROCM_QUICK_REDUCE_QUANTIZATION_MIN_SIZE_KB TPU_USING_PATHWAYS ROCM_FP8_MFMA_PAGE_ATTN WSL2_ENABLE_PIN_MEMORY
        XPU_ENABLE_XPU_GRAPH XPU_USE_SAMPLER_KERNEL XPU_INC_WNA16_BACKEND
    """),
    *_all("nothing is compiled by torch; kernels are chosen for the device", """
        USE_STANDALONE_COMPILE ENABLE_PREGRAD_PASSES USE_BREAKABLE_CUDAGRAPH PATTERN_MATCH_DEBUG DEBUG_DUMP_PATH
        USE_AOT_COMPILE USE_BYTECODE_HOOK FORCE_AOT_LOAD USE_MEGA_AOT_ARTIFACT DISABLE_COMPILE_CACHE USE_LAYERNAME
        ENABLE_CUDAGRAPH_GC ENABLE_STARTUP_PLAN ENABLE_INDUCTOR_MAX_AUTOTUNE
        ENABLE_INDUCTOR_COORDINATE_DESCENT_TUNING COMPILE_CACHE_SAVE_FORMAT MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS
    """),
    *_all("how ranks and engines start and reach each other is said by flags (docs/using/parallel.md)", """
        RPC_BASE_PATH RINGBUFFER_WARNING_INTERVAL NCCL_SO_PATH USE_RAY_COMPILED_DAG_CHANNEL_TYPE
        USE_RAY_COMPILED_DAG_OVERLAP_COMM USE_RAY_WRAPPED_PP_COMM USE_RAY_V2_EXECUTOR_BACKEND
        DISTRIBUTED_USE_SPLIT_GROUP SKIP_P2P_CHECK DISABLE_PYNCCL RAY_PER_WORKER_GPUS RAY_BUNDLE_INDICES
        CUDART_SO_PATH DP_RANK DP_RANK_LOCAL DP_SIZE DP_MASTER_IP DP_MASTER_PORT RANDOMIZE_DP_DUMMY_INPUTS
        RAY_DP_PACK_STRATEGY RAY_DP_PLACEMENT_NODE_IPS RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY RAY_EXTRA_ENV_VARS_TO_COPY
        DEEPEPLL_NVFP4_DISPATCH DCP_Q_REPLICATE MSGPACK_ZERO_COPY_THRESHOLD ALLOW_INSECURE_SERIALIZATION
        FLASHINFER_ALLREDUCE_BACKEND MQ_MAX_CHUNK_BYTES_MB EXECUTE_MODEL_TIMEOUT_SECONDS
        WORKER_SHUTDOWN_TIMEOUT_SECONDS LOOPBACK_IP ALLREDUCE_USE_SYMM_MEM ALLREDUCE_USE_FLASHINFER
        DEEPEP_BUFFER_SIZE_MB DEEPEP_HIGH_THROUGHPUT_FORCE_INTRA_NODE DEEPEP_LOW_LATENCY_USE_MNNVL
        DEEPEP_V2_ALLOW_HYBRID_MODE DEEPEP_V2_PREFER_OVERLAP DEEPEP_V2_ALLOW_MULTIPLE_REDUCTION DBO_COMM_SMS
        USE_NCCL_SYMM_MEM NCCL_INCLUDE_PATH ELASTIC_EP_SCALE_UP_LAUNCH ELASTIC_EP_DRAIN_REQUESTS
        NIXL_EP_MAX_NUM_RANKS USE_DIRECT_DCP_A2A USE_DIRECT_DCP_Q_GATHER USE_DIRECT_DCP_KV_GATHER USE_SPINLOOP_EXT
        GPU_NIC_PCIE_MAPPING NIC_SELECTION_VARS
    """),
    *_all("the KV cache stays on the device of its engine", """
        DISABLE_REQUEST_ID_RANDOMIZATION NIXL_SIDE_CHANNEL_HOST NIXL_SIDE_CHANNEL_PORT P2P_SIDE_CHANNEL_HOST
        P2P_SIDE_CHANNEL_PORT MOONCAKE_BOOTSTRAP_PORT MOONCAKE_STORE_TIER_LOG MOONCAKE_LOAD_RECV_THREADS
        MOONCAKE_DISK_STAGING_USABLE_RATIO KV_CACHE_LAYOUT MOONCAKE_ABORT_REQUEST_TIMEOUT
        ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE KV_EVENTS_USE_INT_BLOCK_HASHES
        KV_OFFLOAD_MAX_BATCH_DESCRIPTORS
    """),
    *_all("weights stay on the device", """
        FASTSAFETENSORS_QUEUE_SIZE WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY WEIGHT_OFFLOADING_DISABLE_UVA
    """),
    *_all("it is for building vLLM", """
        MAIN_CUDA_VERSION USE_PRECOMPILED USE_PRECOMPILED_RUST SKIP_PRECOMPILED_VERSION_SUFFIX DOCKER_BUILD_CONTEXT
        BUILD_COMMIT BUILD_PIPELINE BUILD_URL IMAGE_TAG CPU_CI_ENV ENABLE_CUDA_COMPATIBILITY CUDA_COMPATIBILITY_PATH
    """),
    *_all("logs are lines on stderr, of the level that CADENCE_LOG_LEVEL says", """
        GPU_SYNC_CHECK DEBUG_LOG_API_SERVER_RESPONSE LOGGING_PREFIX LOGGING_COLOR TRACE_FUNCTION PROCESS_NAME_PREFIX
        CUSTOM_SCOPES_FOR_PROFILING NVTX_SCOPES_FOR_PROFILING GC_DEBUG DEBUG_WORKSPACE LOG_MODEL_INSPECTION
        DEBUG_MFU_METRICS DISABLE_LOG_LOGO
    """),
    *_all("limits on requests are those of docs/using/server.md", """
        MAX_COMPLETION_PROMPTS MAX_STOP_STRINGS MAX_NUM_BAD_WORDS MAX_BAD_WORDS_TOTAL_TOKENS V1_USE_OUTLINES_CACHE
        XGRAMMAR_CACHE_MB REGEX_COMPILATION_TIMEOUT_S TOOL_PARSE_REGEX_TIMEOUT_SECONDS
    """),
    *_all("kernels are chosen for the device; `--kernels` names others", """
        FLOAT32_MATMUL_PRECISION REPLICATE_EMBED TRITON_USE_TD TRITON_ATTN_USE_TD USE_FLASHINFER_SAMPLER
        CPU_INT4_W4A8 SPARSE_INDEXER_MAX_LOGITS_MB ADAPTIVE_VERIFICATION_PROFILE_CONTEXT_LEN USE_TRITON_AWQ
        TRITON_FORCE_FIRST_CONFIG DISABLED_KERNELS USE_HW_AGNOSTIC ENABLE_FLA_PACKED_RECURRENT_DECODE
        GDN_DECODE_KERNEL USE_OINK_OPS MXFP8_EMULATION_DEQUANT_AT_LOAD MLA_DISABLE MARLIN_USE_ATOMIC_ADD
        MARLIN_INPUT_DTYPE HUMMING_ONLINE_QUANT_CONFIG HUMMING_INPUT_QUANT_CONFIG HUMMING_USE_F16_ACCUM
        HUMMING_MOE_GEMM_TYPE USE_DEEP_GEMM MOE_USE_DEEP_GEMM USE_DEEP_GEMM_E8M0 USE_DEEP_GEMM_TMA_ALIGNED_SCALES
        DEEP_GEMM_WARMUP USE_FUSED_MOE_GROUPED_TOPK MOE_SKIP_PADDING KIMI_K3_SHARD_SP_SHARED_EXPERT
        KIMI_K3_AUX_ATTN_RES_STREAM KIMI_K3_GEMM_AR KIMI_K3_GEMM_RS BLOCKSCALE_FP8_GEMM_FLASHINFER
        B12X_MOE_FP4_FORCE_A16 USE_FLASHINFER_MOE_INT4 FLASHINFER_AUTOTUNE_CACHE_DIR FLASHINFER_AUTOTUNE_SKIP_OPS
        FLASHINFER_WORKSPACE_BUFFER_SIZE MAX_TOKENS_PER_EXPERT_FP4_MOE SSM_CONV_STATE_LAYOUT HAS_FLASHINFER_CUBIN
        TUNED_CONFIG_FOLDER DISABLE_SHARED_EXPERTS_STREAM DISABLE_DSV4_MEGAMOE_SHARED_EXPERT_FUSION
        SHARED_EXPERTS_STREAM_TOKEN_THRESHOLD MULTI_STREAM_GEMM_TOKEN_THRESHOLD LORA_DISABLE_PDL
        LORA_ENABLE_DUAL_STREAM
    """),
)  # fmt: skip

# Those that stand for a number of `serve`: its option, and how many of its units one of theirs is.
LIMITS = {
    "VLLM_MAX_N_SEQUENCES": ("max_completions", 1),
    "VLLM_MAX_AUDIO_CLIP_FILESIZE_MB": ("max_audio_bytes", 2**20),
    "VLLM_MAX_AUDIO_DECODE_DURATION_S": ("max_audio_seconds", 1),
}
# Those that stand for a switch of `serve`, whose name is theirs without VLLM_.
SWITCHES = ("VLLM_SERVER_DEV_MODE", "VLLM_SKIP_MODEL_NAME_VALIDATION", "VLLM_ALLOW_RUNTIME_LORA_UPDATING")
_OFF = ("", "0", "false")


def check(found: Mapping[str, str]) -> None:
    """`found`: vLLM's variables that are set (`env.peer_variables()`). Raises where one is refused."""
    for variable in VARIABLES:
        if variable.support is Support.REFUSED and is_on(found, variable.name):
            raise ConfigError(f"{variable.name} cannot be honoured: {variable.why}; unset it", variable.name)


def applied(args: EngineArgs, found: Mapping[str, str]) -> EngineArgs:
    """The options with what the variables ask for. One line is logged for each variable that has no effect."""
    check(found)
    table = {variable.name: variable for variable in VARIABLES}
    for name in sorted(found):
        variable = table.get(name, _no_effect(name, NOT_READ))
        if variable.support is Support.NO_EFFECT:
            logger.warning("the variable %s has no effect here: %s", name, variable.why)
    return dataclasses.replace(
        args,
        deterministic=args.deterministic or is_on(found, "VLLM_BATCH_INVARIANT"),
        pp_layer_partition=args.pp_layer_partition or found.get("VLLM_PP_LAYER_PARTITION", "").strip(),
        image_fetch_timeout=args.image_fetch_timeout or count(found, "VLLM_IMAGE_FETCH_TIMEOUT"),
        video_fetch_timeout=args.video_fetch_timeout or count(found, "VLLM_VIDEO_FETCH_TIMEOUT"),
        audio_fetch_timeout=args.audio_fetch_timeout or count(found, "VLLM_AUDIO_FETCH_TIMEOUT"),
        max_image_pixels=args.max_image_pixels or count(found, "VLLM_MAX_IMAGE_PIXELS"),
        media_url_allow_redirects=_switch(args.media_url_allow_redirects, found, "VLLM_MEDIA_URL_ALLOW_REDIRECTS"),
    )


def _switch(given: bool | None, found: Mapping[str, str], name: str) -> bool | None:
    return given if given is not None or name not in found else is_on(found, name)


def count(found: Mapping[str, str], name: str) -> int | None:
    """The number that a variable says; None where it is not set."""
    text = found.get(name, "").strip()
    if not text:
        return None
    if not text.isdecimal() or not int(text):
        raise ConfigError(f"{name}={text!r} is not a number of at least 1", name)
    return int(text)


def is_on(found: Mapping[str, str], name: str) -> bool:
    return found.get(name, "").strip().lower() not in _OFF
