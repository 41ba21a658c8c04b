"""What users may ask of an engine: one flat list of options under vLLM's names.

The flags of the shell, the keywords of `LLM(...)` and the tables in the documents all come from these fields.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import logging
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from cadence.config import ranges
from cadence.config.command_line import values
from cadence.config.command_line.argv import merged
from cadence.config.files.implementation import MODEL_IMPLS
from cadence.config.files.quantization_names import CHECKPOINT_METHODS
from cadence.config.parallel import BACKENDS, check_nodes, check_sizes
from cadence.config.peers import peer_table
from cadence.config.peers.peer_flag import PeerFlag, Support
from cadence.config.pooling.pooler_options import CONVERTS, RUNNERS, TASKS, PoolerOptions, as_object, asked_runner
from cadence.config.speculative_options import SpeculativeOptions, without_hints
from cadence.config.structured_options import read_structured, structured_notices
from cadence.core.errors import ConfigError

logger = logging.getLogger("cadence.config")

MEANT_BY_NONE: dict[str, Any] = {
    "seed": 0, "dtype": "auto", "kv_cache_dtype": "auto", "hf_overrides": {}, "override_generation_config": {},
    "speculative_config": {}, "structured_outputs_config": {}, "pooler_config": {}, "runner": "auto", "convert": "auto",
    "allowed_local_media_path": "", "allowed_media_domains": [], "limit_mm_per_prompt": {}, "media_io_kwargs": {},
    "mm_processor_kwargs": {},
    "model_class_overrides": {},
}  # fmt: skip
DTYPES = ("auto", "half", "float16", "bfloat16", "float", "float32")
KV_CACHE_DTYPES = (
    *DTYPES, "int8", "int8_per_token_head", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_per_token_head", "int4",
)  # fmt: skip


def option(default: Any, help: str, choices: tuple[str, ...] = ()) -> Any:
    """A field with what the command line needs to know of it."""
    metadata = {"help": help, "choices": choices}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=dict, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(slots=True)
class EngineArgs:
    # The model
    model: str = option("smollm2", "alias (see `cadence models`), folder, .gguf file, or hub id")
    tokenizer: str | None = option(None, "where the tokenizer is, when it is not with the model")
    tokenizer_mode: str = option(
        "auto",
        "mistral: tekken.json or tokenizer.model.v3, chats by mistral_common",
        ("auto", "hf", "mistral"),
    )
    revision: str | None = option(None, "branch, tag or commit of the model on the hub")
    tokenizer_revision: str | None = option(None, "branch, tag or commit of the tokenizer on the hub")
    hf_token: str | None = option(None, "hub access token for gated models (else HF_TOKEN, or the one `hf` saved)")
    download_dir: str | None = option(None, "folder for files fetched from the hub")
    load_format: str = option(
        "auto", "how weights are stored", ("auto", "safetensors", "pt", "gguf", "sharded_state", "dummy")
    )
    quantization: str | None = option(
        None,
        "none = as stored or widened, gguf = the file's own blocks, fp8, int8, int4 = made while loading; a "
        "method's name = as the checkpoint is quantised, the default of such",
        ("none", "gguf", "int8", "int4", *CHECKPOINT_METHODS),
    )
    model_impl: str = option(
        "auto", "whose code computes the model: ours, or transformers' with our attention (ours, where there is one)",
        MODEL_IMPLS,
    )  # fmt: skip
    trust_remote_code: bool = option(False, "run the code that comes with a model, through transformers")
    model_class_overrides: dict[str, Any] = option(
        {}, 'JSON: classes that compute architectures: {"MyForCausalLM": "package.module:Class"}'
    )
    hf_overrides: dict[str, Any] = option({}, "JSON merged over the model's config.json")
    mmproj: str | None = option(
        None, "of a .gguf model: the .gguf file with what sees pictures; none = texts alone (one beside it that fits)"
    )
    use_tqdm_on_load: bool = option(True, "show a progress bar while weights load")

    # Values in place of text
    runner: str = option("auto", "what the model is for: text, or values of texts (as its files say)", RUNNERS)
    convert: str = option(
        "auto", "what a model that generates text is made into: embeddings, scores of texts or of tokens", CONVERTS
    )
    pooler_config: dict[str, Any] = option(
        {}, "JSON: how hidden states become values, over what the model's files say: pooling_type, use_activation, …"
    )
    task: str | None = option(None, "an older way to say runner and convert", TASKS)

    # Numbers
    dtype: str = option("auto", "type of weights and activations, and of the KV cache unless told", DTYPES)
    seed: int = option(0, "seed of requests that bring none")
    max_model_len: int | None = option(
        None, "most tokens of a request, prompt and output together; auto or -1 = what the KV cache holds"
    )
    disable_sliding_window: bool = option(
        False, "requests no longer than the model's window or chunk, which so never slides"
    )
    max_logprobs: int = option(20, "most logprobs a request may ask for; -1 = the whole vocabulary")
    logprobs_mode: str = option(
        "raw_logprobs",
        "what logprobs show: before or after the sampling options, normalised or not",
        ("raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"),
    )

    # Text
    skip_tokenizer_init: bool = option(False, "token ids in, token ids out; no tokenizer is loaded")
    chat_template: str | None = option(None, "chat template, or the path of a file holding one")
    trust_request_chat_template: bool = option(False, "let requests to a server bring their own chat template")
    escape_control_tokens: bool = option(False, "text of chat messages never becomes a control token")
    generation_config: str = option(
        "auto", "where default sampling values come from: auto = the model, vllm = nowhere, or a folder"
    )
    override_generation_config: dict[str, Any] = option({}, "JSON merged over the default sampling values")

    # Pictures and videos
    allowed_local_media_path: str = option("", "folder below which requests may name files (file: URLs); none")
    allowed_media_domains: list[str] = option(
        (), "host from which files may be fetched (http, https); several may be given, * = all that are public; none"
    )
    limit_mm_per_prompt: dict[str, Any] = option({}, 'JSON: most of a kind in a prompt: {"image": 16, "video": 1}')
    media_io_kwargs: dict[str, Any] = option({}, 'JSON: how files are read: {"video": {"num_frames": 16, "fps": 1}}')
    mm_processor_kwargs: dict[str, Any] = option({}, 'JSON over preprocessor_config.json: {"max_pixels": 1003520}')
    mm_processor_cache_gb: float = option(4.0, "GiB for pictures that requests may name again (uuid)")
    max_image_pixels: int | None = option(None, "most pixels of a picture (67108864)")
    image_fetch_timeout: int | None = option(None, "seconds that a picture may take to be fetched (5)")
    video_fetch_timeout: int | None = option(None, "seconds that a video may take to be fetched (30)")
    audio_fetch_timeout: int | None = option(None, "seconds that a recording may take to be fetched (10)")
    media_url_allow_redirects: bool | None = option(None, "follow up to 3 redirects, by the same rules (on)")

    # Scheduler
    max_num_seqs: int | None = option(
        None, "most requests running at once (256; on GPUs of 70 GiB 1024; on the CPU 64)"
    )
    max_num_batched_tokens: int | None = option(
        None, "most tokens computed in a step (8192; for an LLM object on GPUs of 70 GiB 16384; on the CPU 2048)"
    )
    max_num_encoder_tokens: int | None = option(
        None, "most positions that an encoder computes in a step, or one input (as max_num_batched_tokens)"
    )
    enable_prompt_embeds: bool = option(False, "prompts may be vectors in the place of tokens (prompt_embeds)")
    enable_chunked_prefill: bool | None = option(None, "spread long prompts over several steps (on)")
    long_prefill_token_threshold: int = option(0, "most prompt tokens of one request in a step; 0 = no limit")
    scheduling_policy: str = option(
        "fair",
        "who runs first: tenants (API keys) by turns and each in its order, all in their order, or by priority",
        ("fair", "fcfs", "priority"),
    )
    async_scheduling: bool | None = option(None, "plan the next step while one runs (on; off on a CPU without workers)")
    max_inter_token_ms: float | None = option(
        None,
        "most milliseconds that prompts of others may hold up a streamed token (60; on the CPU 250); 0 = no limit",
    )
    num_scheduler_steps: int | None = option(
        None, "forwards per plan, where no request waits (automatic); 1 = no bursts"
    )

    # Speculative decoding
    speculative_config: dict[str, Any] = option(
        {}, "JSON: who drafts tokens that a later forward verifies, and how many (off); the tokens stay the same"
    )

    # Structured output
    structured_outputs_config: dict[str, Any] = option(
        {}, "JSON: what applies to structured output where a request does not say: backend, disable_any_whitespace"
    )

    # LoRA adapters
    enable_lora: bool = option(False, "requests may name a LoRA adapter")
    max_loras: int = option(1, "most different adapters of the requests that run at once")
    max_lora_rank: int = option(16, "highest rank of an adapter")
    max_cpu_loras: int | None = option(
        None, "most adapters kept in host memory (8, or twice max_loras where that is more)"
    )

    # KV cache
    block_size: int | None = option(None, "tokens per KV block (16)")
    enable_prefix_caching: bool | None = option(None, "reuse the KV of prompts that begin alike (on)")
    gpu_memory_utilization: float = option(0.92, "share of the GPU's memory the engine may fill")
    kv_cache_dtype: str = option(
        "auto", "type of the KV cache: auto = the checkpoint's, or as dtype (on some CPUs float16); fp8, int8, others",
        KV_CACHE_DTYPES,
    )  # fmt: skip
    kv_cache_memory_bytes: int | None = option(None, "size of the KV cache in bytes, instead of a share")
    num_gpu_blocks_override: int | None = option(None, "number of KV blocks, instead of a size")

    # Processes
    distributed_executor_backend: str | None = option(
        None,
        "where the model runs: uni = in the engine's process, mp = in processes of its own, ray = in Ray actors (uni)",
        BACKENDS,
    )
    tensor_parallel_size: int = option(1, "processes that share each layer, each with a GPU or cores of its own")
    pipeline_parallel_size: int = option(1, "stages, each with some of the layers on devices of its own")
    data_parallel_size: int = option(1, "engines, each with the whole model, that requests are shared out among")
    device_ids: list[int] = option(
        (), "the GPU of each rank, with commas between them (0,1,…); one that is named twice is shared"
    )
    enable_expert_parallel: bool = option(
        False, "ranks have whole experts of each layer, instead of a part of every one"
    )
    pp_layer_partition: str = option("", "layers of each stage, with commas between them (as even as can be)")

    nnodes: int = option(1, "machines that share the ranks of all engines; the engines are on the first")
    node_rank: int = option(0, "which of them this one is; those above 0 are started with --headless")
    master_addr: str = option("127.0.0.1", "address of the first machine, at which it waits for the others")
    master_port: int = option(29501, "port at which it waits for them; each further engine has the next")
    engine_number: int = option(0, "which of data_parallel_size engines this is; the server sets it")
    node_secret_file: str | None = option(None, "file with a secret that only they have")

    # Device
    device: str = option("auto", "where to run", ("auto", "cpu", "cuda"))
    kernels: str = option("auto", "which kernels to run", ("auto", "reference", "triton", "cpu"))
    enforce_eager: bool = option(False, "do not record decode steps (as CUDA graphs; on a CPU as lists of calls)")
    warmup: str | None = option(
        None,
        "on a GPU, what is compiled and captured before requests are taken: lazy = what most need, and the rest in "
        "idle moments (a server's default), full = everything, none = nothing (the default of an LLM object)",
        ("none", "lazy", "full"),
    )
    deterministic: bool = option(False, "on a GPU: the same bits whatever else is in the batch, at some cost in speed")
    enable_sleep_mode: bool = option(False, "memory of a GPU can be given back for a while: sleep() and wake_up()")
    cpu_threads: int = option(0, "threads of the kernels on the CPU; 0 = one per core this process may use")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = _checked(field, hints()[field.name], getattr(self, field.name))
            setattr(self, field.name, value)
        ranges.check(self)
        check_sizes(self)
        check_nodes(self)
        SpeculativeOptions.read(self.speculative_config)
        read_structured(self.structured_outputs_config)
        PoolerOptions.read(self.pooler_config)
        asked_runner(self.runner, self.convert, self.task)

    @classmethod
    def from_options(cls, **options: Any) -> EngineArgs:
        """Options as a user wrote them. Of vLLM's names, those that have no effect here are logged with the reason, and
        those whose promise would be broken are errors that give it; an unknown name is an error."""
        known = names()
        meant: dict[str, Any] = {}
        in_place: dict[str, Any] = {}
        for name, value in options.items():
            peer = peer_table.FLAGS.get(name)
            if name in known and (peer is None or value not in peer.hints):
                meant[name] = value
            elif peer is None:
                raise ConfigError(f"unknown option {name}{nearest(name, [*known, *peer_table.FLAGS])}", name)
            elif peer.means and not peer.asks_for_nothing(value):
                in_place = merged(in_place, _nested(peer.means, value))
            else:
                _name_ineffective(peer, value)
        for name, value in in_place.items():
            meant[name] = merged(value, values.coerce(name, hints()[name], meant.get(name) or {}))
        args = cls(**meant)
        args.speculative_config, notices = without_hints(args.speculative_config)
        if args.task not in (None, "auto", "generate"):
            asked = asked_runner(args.runner, args.convert, args.task)
            logger.warning("task=%s is taken to be runner=%s, convert=%s", args.task, asked.runner, asked.convert)
        for notice in (*notices, *structured_notices(args.structured_outputs_config)):
            logger.warning("%s", notice)
        return args


def _name_ineffective(peer: PeerFlag, value: object) -> None:
    """Logs what the value is not used for; ConfigError where it would have to be."""
    if peer.support is not Support.WORKS or value in peer.hints:
        notice = peer.notice(value)
    elif peer.name in peer_table.SERVER_ONLY:
        raise ConfigError(f"{peer.name} is an option of `cadence serve`", peer.name)
    else:
        notice = "" if peer.asks_for_nothing(value) else f"{peer.name} has no effect here: it is for `cadence serve`"
    if notice:
        logger.warning("%s", notice)


def _nested(path: str, value: object) -> dict[str, Any]:
    first, _, rest = path.partition(".")
    return {first: _nested(rest, value) if rest else as_object(value)}


def _checked(field: dataclasses.Field[Any], hint: Any, value: Any) -> Any:
    name = field.name
    if name == "max_model_len" and isinstance(value, str) and value.lower() == "auto":
        value = -1
    if name == "hf_token" and value is True:
        value = None  # vLLM's way to ask for the saved token, which is what happens anyway
    if name in ("dtype", "kv_cache_dtype") and str(value).startswith("torch."):
        value = str(value).removeprefix("torch.")  # torch.dtype objects, without importing torch here
    if name == "pooler_config":
        value = as_object(value)
    if value is None:
        value = MEANT_BY_NONE.get(name)
    value = values.coerce(name, hint, value)
    choices = field.metadata["choices"]
    if choices and value is not None and value not in choices:
        peer = peer_table.FLAGS.get(name)
        note = f": {peer.why}" if peer is not None and peer.why else ""
        raise ConfigError(f"{name}={value!r} is not one of {', '.join(choices)}{note}", name)
    return value


@functools.cache
def hints() -> dict[str, Any]:
    """The types of the fields, by name."""
    return typing.get_type_hints(EngineArgs)


def names() -> list[str]:
    return [field.name for field in dataclasses.fields(EngineArgs)]


def nearest(name: str, candidates: Iterable[str]) -> str:
    """A suffix for an error message: the candidate that looks most like `name`, if one does."""
    found = difflib.get_close_matches(name, list(candidates), n=1, cutoff=0.6)
    return f"; did you mean {found[0]}?" if found else ""
