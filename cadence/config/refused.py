"""Names that vLLM users carry and that mean nothing here: each has a sentence that says why, or what to use instead.

`REFUSED`: an error, unless the value is the neutral one (which asks for nothing). `HARMLESS`: options removed from vLLM
long ago that scripts still carry and that cannot change any result; accepted with a notice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cadence.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Refusal:
    neutral: tuple[Any, ...]  # values that ask for nothing, as None and empty texts and containers always do
    why: str


def _group(why: str, **neutral: Any) -> dict[str, Refusal]:
    """One sentence for several names. A tuple lists several neutral values."""
    return {name: Refusal(value if isinstance(value, tuple) else (value,), why) for name, value in neutral.items()}


def check(name: str, value: object) -> None:
    refusal = REFUSED[name]
    empty = value is None or (not value and not isinstance(value, (bool, int, float)))
    if empty or any(type(value) is type(neutral) and value == neutral for neutral in refusal.neutral):
        return
    raise ConfigError(f"{name}={value!r} cannot be honoured: {refusal.why}", name)


REFUSED: dict[str, Refusal] = {
    **_group(
        "this version runs on one device",
        tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=1, data_parallel_size_local=1,
        prefill_context_parallel_size=1, decode_context_parallel_size=1, nnodes=1, node_rank=0,
        data_parallel_rank=None, data_parallel_start_rank=None, data_parallel_address=None,
        data_parallel_rpc_port=None, data_parallel_backend="mp", data_parallel_hybrid_lb=False,
        data_parallel_external_lb=False, data_parallel_multi_port_external_lb=False, enable_expert_parallel=False,
        enable_ep_weight_filter=False, all2all_backend="allgather_reducescatter", enable_dbo=False, ubatch_size=0,
        enable_elastic_ep=False, dbo_decode_token_threshold=32, dbo_prefill_token_threshold=512,
        disable_nccl_for_dp_synchronization=False, enable_eplb=False, eplb_config={},
        expert_placement_strategy="linear", max_parallel_loading_workers=None, ray_workers_use_nsight=False,
        worker_use_ray=False, worker_cls="auto", worker_extension_cls="", distributed_executor_backend="uni",
        master_addr="127.0.0.1", master_port=29501, distributed_timeout_seconds=None,
        cpu_distributed_timeout_seconds=None, numa_bind=False, numa_bind_nodes=None, numa_bind_cpus=None,
        device_ids=None, dcp_comm_backend=None, dcp_q_replicate=False, dcp_kv_cache_interleave_size=1,
        cp_kv_cache_interleave_size=1, enable_fault_tolerance=False, fault_tolerance_config={},
        prefill_schedule_interval=1,
    ),
    **_group(
        "code that comes with a model is never run; architectures are listed by `cadence models`",
        trust_remote_code=False, code_revision=None, model_impl=("auto", "vllm"), model_class_overrides={},
        io_processor_plugin=None, config_format=("auto", "hf"), hf_config_path=None,
    ),
    **_group(
        "weights are read in the format of their file; quantised ones come as GGUF",
        quantization_config={}, allow_deprecated_quantization=False,
        model_loader_extra_config={}, safetensors_load_strategy=None, safetensors_prefetch_num_threads=None,
        safetensors_prefetch_block_size=None, ignore_patterns=None, pt_load_map_location="cpu",
        quantization_param_path=None, weight_transfer_config=None,
    ),
    **_group(
        "all layers keep keys and values in one type; choose it with kv_cache_dtype",
        kv_cache_dtype_skip_layers=[], kv_sharing_fast_prefill=False,
    ),
    **_group("the prefix cache always uses SHA-256", prefix_caching_hash_algo="sha256"),
    **_group(
        "the KV cache lives on the device only",
        kv_offloading_size=None, kv_offloading_backend="native", kv_transfer_config=None, kv_events_config=None,
        ec_transfer_config=None, ec_manager_config={}, prefix_cache_retention_interval=None, prefix_match_unit=None,
    ),
    **_group(
        "weights stay on the device whole; take a smaller model or a quantised GGUF",
        cpu_offload_gb=(0, 0.0), offload_backend="auto", cpu_offload_params=None, offload_group_size=0,
        offload_num_in_group=1, offload_prefetch_step=1, offload_params=None, enable_sleep_mode=False,
        enable_cumem_allocator=False,
    ),
    **_group(
        "LoRA adapters are not in this version; merge the adapter into the weights",
        enable_lora=False, max_loras=1, max_lora_rank=16, lora_dtype="auto", max_cpu_loras=None,
        fully_sharded_loras=False, lora_target_modules=None, default_mm_loras=None, specialize_active_lora=False,
        enable_mixed_moe_lora_format=False, enable_moe_shared_loras=False, enable_tower_connector_lora=False,
        lora_modules=None, enable_prompt_adapter=False, enable_lora_bias=False, qlora_adapter_name_or_path=None,
        max_prompt_adapters=None, max_prompt_adapter_token=None, long_lora_scaling_factors=None,
    ),
    **_group(
        "speculative decoding is not in this version; leave it out, the tokens are the same",
        speculative_config=None, spec_method=None, spec_model=None, spec_tokens=None, speculative_model=None,
        num_speculative_tokens=None, speculative_draft_tensor_parallel_size=None, speculative_max_model_len=None,
        speculative_disable_by_batch_size=None, speculative_disable_mqa_scorer=False,
        speculative_model_quantization=None, ngram_prompt_lookup_max=None, ngram_prompt_lookup_min=None,
        spec_decoding_acceptance_method=None, typical_acceptance_sampler_posterior_threshold=None,
        typical_acceptance_sampler_posterior_alpha=None, disable_logprobs_during_spec_decoding=False,
        per_request_spec_decode_metrics="none", diffusion_config=None,
    ),
    **_group(
        "decode batches become graphs when they are first met, or never with enforce_eager; nothing is compiled",
        compilation_config={}, cudagraph_capture_sizes=None, max_cudagraph_capture_size=None,
        optimization_level=(0, "O0"), performance_mode="balanced", cudagraph_metrics=False, jit_monitor_mode="warn",
        jit_monitor_verbose=False,
    ),
    **_group(
        "kernels are chosen with the option `kernels`",
        attention_backend=None, attention_config={}, kernel_config={}, moe_backend="auto", linear_backend="auto",
        ir_op_priority={}, enable_flashinfer_autotune=False, enable_bf16x3_router_gemm=False, mamba_backend="triton",
        mamba_ssu_algorithm=None, enable_mamba_cache_stochastic_rounding=False, mamba_cache_philox_rounds=0,
        mamba_cache_dtype="auto", mamba_ssm_cache_dtype="auto", mamba_block_size=None, mamba_cache_mode="none",
        replayssm_buffer_len=16, use_replayssm=False, gdn_prefill_backend=None, kda_prefill_backend=None,
        use_fp64_gumbel=False, disable_cascade_attn=True,
    ),
    **_group(
        "a window is part of the model: without it the tokens would differ",
        disable_sliding_window=False, disable_hybrid_kv_cache_manager=(None, False),
    ),
    **_group(
        "this version generates text; pooling models are not served",
        runner=("auto", "generate"), convert=("auto", "none"), task=("auto", "generate"), pooler_config=None,
        override_pooler_config=None, enable_flash_late_interaction=True,
    ),
    **_group(
        "this version reads text only",
        allowed_local_media_path="", allowed_media_domains=None, limit_mm_per_prompt={}, enable_mm_embeds=False,
        media_io_kwargs={}, mm_processor_kwargs=None, mm_processor_cache_gb=(4, 0), mm_processor_cache_type="lru",
        mm_hasher_algorithm=None, mm_shm_cache_max_object_size_mb=128, mm_encoder_only=False,
        mm_encoder_tp_mode="weights", mm_encoder_attn_backend=None, mm_encoder_attn_dtype=None,
        mm_encoder_fp8_scale_path=None, mm_encoder_fp8_scale_save_path=None, mm_encoder_fp8_scale_save_margin=1.5,
        interleave_mm_strings=False, skip_mm_profiling=False, video_pruning_rate=None, video_pruning_method="evs",
        mm_tensor_ipc="direct_rpc", mm_processor_device="auto", mm_ipc_gpu_memory_gb=(0, 0.0),
        mm_device_do_normalize=True, disable_chunked_mm_input=False, language_model_only=(False, True),
        disable_mm_preprocessor_cache=False,
    ),
    **_group("they are Python callables: LLM(logits_processors=[...])", logits_processors=None),
    **_group("prompts are text or token ids", enable_prompt_embeds=False),
    **_group("tokenizers are read from tokenizer.json or from the GGUF file", tokenizer_mode=("auto", "hf")),
    **_group("set it with hf_overrides={'rope_scaling': {...}}", rope_scaling=None),
    **_group("set it with hf_overrides={'rope_theta': ...}", rope_theta=None),
    **_group(
        "output constrained by a grammar is not in this version",
        structured_outputs_config={}, reasoning_config=None, reasoning_parser_plugin=None, enable_reasoning=False,
    ),
    **_group(
        "it is an option of `cadence serve`",
        reasoning_parser="",
        served_model_name=None, host=None, port=8000, uds=None, api_key=None, ssl_keyfile=None, ssl_certfile=None,
        ssl_ca_certs=None, root_path=None, allowed_origins=None, allowed_methods=None, allowed_headers=None,
        allow_credentials=False, middleware=None, enable_auto_tool_choice=False, tool_call_parser=None,
        tool_parser_plugin="", tool_server=None, response_role="assistant", enable_request_id_headers=False,
        enable_prompt_tokens_details=False, enable_log_requests=False, enable_log_outputs=False, max_log_len=None,
        default_chat_template_kwargs=None, stream_interval=1, renderer_num_workers=1, shutdown_timeout=0,
    ),
    **_group(
        "traces and detailed metrics are not in this version",
        otlp_traces_endpoint=None, collect_detailed_traces=None, show_hidden_metrics_for_version=None,
        kv_cache_metrics=False, kv_cache_metrics_sample=0.01, enable_layerwise_nvtx_tracing=False,
        enable_mfu_metrics=False, enable_logging_iteration_details=False, profiler_config=None,
        aggregate_engine_logging=False, fail_on_environ_validation=False,
    ),
    **_group(
        "the scheduler has one form",
        scheduler_cls=None, max_num_scheduled_tokens=None, scheduler_reserve_full_isl=True, watermark=(0, 0.0),
    ),
    **_group(
        "this version does not return them",
        enable_return_routed_experts=False, return_sampling_mask=False, enable_trace_replay=False,
    ),
    **_group("options of another platform", additional_config={}, override_neuron_config=None),
}  # fmt: skip

_NO_SWAP = "a preempted request is computed again, nothing is swapped"
_ONE_DEVICE = "there is one device, so nothing is reduced between devices"
_TEXT_POOL = "tokenising happens in the engine's own process"

HARMLESS: dict[str, str] = {
    "swap_space": _NO_SWAP,
    "preemption_mode": _NO_SWAP,
    "use_v2_block_manager": "there is one block manager",
    "multi_step_stream_outputs": "outputs always stream",
    "num_lookahead_slots": "space ahead is reserved as needed",
    "scheduler_delay_factor": "requests are admitted as soon as there is room",
    "disable_async_output_proc": "outputs are processed in order",
    "disable_log_requests": "requests are never logged",
    "disable_log_stats": "statistics are never logged; get_metrics and /metrics give them to whoever asks",
    "max_seq_len_to_capture": "captured graphs serve sequences of every length",
    "calculate_kv_scales": "the KV cache is not scaled",
    "max_num_partial_prefills": "every request may be prefilled in parts",
    "max_long_partial_prefills": "every request may be prefilled in parts",
    "guided_decoding_backend": "it only matters to requests with a grammar",
    "logits_processor_pattern": "logits processors are given as callables",
    "lora_extra_vocab_size": "it only matters with LoRA adapters",
    "disable_custom_all_reduce": _ONE_DEVICE,
    "tokenizer_pool_size": _TEXT_POOL,
    "tokenizer_pool_type": _TEXT_POOL,
    "tokenizer_pool_extra_config": _TEXT_POOL,
}

HARMLESS_SWITCHES = {  # those that take no value on the command line
    "use_v2_block_manager",
    "multi_step_stream_outputs",
    "disable_async_output_proc",
    "disable_log_requests",
    "disable_log_stats",
    "calculate_kv_scales",
    "disable_custom_all_reduce",
}

SHORT_FLAGS = {
    "tensor_parallel_size": "-tp",
    "pipeline_parallel_size": "-pp",
    "data_parallel_size": "-dp",
    "enable_expert_parallel": "-ep",
    "decode_context_parallel_size": "-dcp",
    "speculative_config": "-sc",
    "compilation_config": "-cc",
    "attention_config": "-ac",
    "optimization_level": "-O",
}
