"""The resolved configuration: frozen, complete, every default decided. A part receives its own sub-config only."""

from __future__ import annotations

from dataclasses import dataclass

from cadence.config.encoder_config import NO_ENCODER, EncoderConfig
from cadence.config.hf import HFConfig
from cadence.config.lora import NO_ADAPTERS, LoraConfig
from cadence.config.media_config import NO_MEDIA, MediaConfig
from cadence.config.media_intake import MediaIntake
from cadence.config.parallel import ONE_PROCESS, ParallelConfig
from cadence.config.peers.raw_config import RawConfig
from cadence.config.pooling import DECODER, PoolingConfig
from cadence.config.reference import ModelFiles
from cadence.config.speculative import NO_SPECULATION, SpeculativeConfig
from cadence.core.grammar import NO_DEFAULTS, GrammarDefaults


@dataclass(frozen=True, slots=True)
class ModelConfig:
    files: ModelFiles
    hf: HFConfig
    dtype: str  # "float32" | "bfloat16" | "float16"
    max_model_len: int  # tokens, prompt and output together
    seed: int
    max_logprobs: int  # -1 = no cap
    logprobs_mode: str  # raw_logprobs | raw_logits | processed_logprobs | processed_logits
    encoder: EncoderConfig = NO_ENCODER
    media: MediaConfig = NO_MEDIA

    @property
    def hf_config(self) -> RawConfig:
        """As scripts for vLLM call it."""
        return RawConfig(self.hf.raw)


@dataclass(frozen=True, slots=True)
class TokenizerConfig:
    files: ModelFiles  # of the tokenizer; usually the model's own files
    skip: bool  # skip_tokenizer_init
    chat_template: str  # a template, or the path of one; "" = the model's own
    escape_control_tokens: bool = False  # control tokens come from templates alone, never from messages
    mode: str = "auto"  # auto | hf | mistral: from Mistral's own files alone


@dataclass(frozen=True, slots=True)
class LoadConfig:
    load_format: str  # auto | safetensors | pt | gguf | sharded_state | dummy
    use_tqdm: bool
    # none = as stored, or in the model's dtype | gguf, checkpoint: blocks as the files have them | fp8 | int8 | int4
    quantization: str = "none"
    stage_layers: tuple[int, ...] = ()  # of each pipeline stage; () = as even as can be
    whole_experts: bool = False  # of the experts of a layer each rank has some, instead of a part of every one


@dataclass(frozen=True, slots=True)
class CacheConfig:
    block_size: int  # tokens per KV block
    enable_prefix_caching: bool
    gpu_memory_utilization: float  # share of the device's memory the engine may fill
    kv_cache_memory_bytes: int  # 0 = from memory
    num_blocks_override: int  # 0 = from memory
    dtype: str = "float32"  # of keys and values: float32 | bfloat16 | float16 | int8


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    max_num_seqs: int  # rows
    max_num_batched_tokens: int  # token budget of a step
    policy: str  # fair | fcfs | priority
    enable_chunked_prefill: bool
    long_prefill_token_threshold: int  # 0 = none: most prompt tokens of one request in a step
    steps_in_flight: int  # 1 = plain, 2 = async scheduling, stages + 1 = every pipeline stage has work
    burst_steps: int = 1  # most forwards of one plan
    num_stages: int = 1  # that a step goes through one after another, beside other steps
    burst_seconds: float = 0.0  # automatic bursts: most seconds a burst may take; 0 = all are burst_steps long
    max_inter_token_seconds: float = 0.0  # of a step with prompts that streams wait for; 0 = no limit
    min_prompt_tokens: int = 1  # that such a step may have, whatever they take
    adapter_slots: int = 0  # most different adapters of running requests
    max_encoder_len: int = 0  # most positions of an encoder's output that a request has; 0 = the model has no encoder
    max_num_encoder_tokens: int = 0  # positions that encoders compute in a step, at most, or those of one request
    encoder_cache: int = 0  # vectors of pictures and sounds that are kept; 0 = the model takes text alone


@dataclass(frozen=True, slots=True)
class DeviceConfig:
    kind: str  # cpu | cuda
    kernels: str  # auto | reference | triton | cpu
    graphs: str = "none"  # forwards recorded and replayed: padded (to few shapes) | exact | none
    deterministic: bool = False  # results do not depend on what else is in the batch, at some cost in speed
    cpu_threads: int = 0  # of the CPU's kernels; 0 = as many as are worth having
    cpu_isa: str = "auto"  # instruction set of the CPU's matrix products; auto = the best there is
    warmup: str = "none"  # what is compiled and captured before requests come: none | lazy (the rest when idle) | full
    sleep_mode: bool = False  # memory is allocated so that it can be given back for a while
    ids: tuple[int, ...] = ()  # the GPU of each rank; () = by its number


@dataclass(frozen=True, slots=True)
class EngineConfig:
    model: ModelConfig
    tokenizer: TokenizerConfig
    load: LoadConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    device: DeviceConfig
    speculative: SpeculativeConfig = NO_SPECULATION
    structured: GrammarDefaults = NO_DEFAULTS
    lora: LoraConfig = NO_ADAPTERS
    parallel: ParallelConfig = ONE_PROCESS
    pooling: PoolingConfig = DECODER
    intake: MediaIntake = MediaIntake()  # noqa: RUF009 (frozen)

    # As scripts for vLLM call them.

    @property
    def model_config(self) -> ModelConfig:
        return self.model

    @property
    def load_config(self) -> LoadConfig:
        return self.load

    @property
    def cache_config(self) -> CacheConfig:
        return self.cache

    @property
    def scheduler_config(self) -> SchedulerConfig:
        return self.scheduler

    @property
    def structured_outputs_config(self) -> GrammarDefaults:
        return self.structured

    @property
    def parallel_config(self) -> ParallelConfig:
        return self.parallel

    @property
    def lora_config(self) -> LoraConfig | None:
        return self.lora if self.lora.enabled else None

    @property
    def speculative_config(self) -> SpeculativeConfig:
        return self.speculative
