"""Which group of `--help` a flag stands in: those that most users need first, then one group for each part."""

from __future__ import annotations

import argparse

GROUPS: dict[str, tuple[str, ...]] = {
    "common": (
        "model", "served_model_name", "host", "port", "api_key", "max_model_len", "max_num_seqs", "dtype",
        "quantization", "gpu_memory_utilization", "kv_cache_memory_bytes", "tensor_parallel_size", "device",
        "cpu_threads", "tool_call_parser", "reasoning_parser", "chat_template", "speculative_config", "enable_lora",
        "lora_modules", "seed",
    ),
    "model files": (
        "tokenizer", "tokenizer_mode", "revision", "tokenizer_revision", "hf_token", "download_dir", "load_format",
        "hf_overrides", "model_impl", "trust_remote_code", "model_class_overrides", "mmproj", "use_tqdm_on_load",
        "skip_tokenizer_init", "disable_sliding_window",
    ),
    "several models": ("models", "models_memory", "models_wait"),
    "values in place of text": ("runner", "convert", "pooler_config", "task"),
    "pictures and videos": (
        "allowed_local_media_path", "allowed_media_domains", "limit_mm_per_prompt", "media_io_kwargs",
        "mm_processor_kwargs", "mm_processor_cache_gb", "max_image_pixels", "image_fetch_timeout",
        "video_fetch_timeout", "audio_fetch_timeout", "media_url_allow_redirects",
    ),
    "scheduling": (
        "max_num_batched_tokens", "max_num_encoder_tokens", "enable_chunked_prefill", "long_prefill_token_threshold",
        "scheduling_policy", "async_scheduling", "max_inter_token_ms", "num_scheduler_steps", "enable_prompt_embeds",
    ),
    "KV cache": ("block_size", "enable_prefix_caching", "kv_cache_dtype", "num_gpu_blocks_override"),
    "sampling defaults": (
        "max_logprobs", "logprobs_mode", "generation_config", "override_generation_config",
        "structured_outputs_config", "trust_request_chat_template", "escape_control_tokens",
    ),
    "adapters": (
        "max_loras", "max_lora_rank", "max_cpu_loras", "allow_runtime_lora_updating", "lora_root",
    ),
    "parallelism": (
        "distributed_executor_backend", "pipeline_parallel_size", "data_parallel_size", "api_server_count",
        "device_ids", "enable_expert_parallel", "pp_layer_partition", "nnodes", "node_rank", "master_addr",
        "master_port", "node_secret_file", "headless", "engine_number",
    ),
    "kernels": ("kernels", "enforce_eager", "warmup", "deterministic", "enable_sleep_mode"),
    "address and TLS": (
        "uds", "root_path", "ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "ssl_cert_reqs", "ssl_ciphers",
    ),
    "who may ask": (
        "tenant_config", "protect_metrics", "share_prefix_cache", "allowed_origins", "allowed_methods",
        "allowed_headers",
        "allow_credentials", "middleware",
    ),
    "limits": (
        "max_queued_requests", "max_queued_tokens", "request_deadline", "read_timeout", "write_timeout",
        "max_realtime_sessions", "realtime_idle_timeout",
        "max_connections", "max_body_bytes", "max_audio_bytes", "max_audio_seconds", "max_header_bytes",
        "max_header_count", "max_held_body_bytes", "max_json_depth", "max_json_values", "max_completions",
        "max_step_age", "engine_heartbeat_timeout", "engine_step_timeout", "event_loop_timeout", "shutdown_timeout",
        "strict_requests",
    ),
    "answers": (
        "response_role", "chat_template_content_format", "default_chat_template_kwargs", "tool_parser_plugin",
        "enable_auto_tool_choice", "exclude_tools_when_tool_choice_none", "reasoning_parser_plugin",
        "return_tokens_as_token_ids", "enable_prompt_tokens_details", "enable_force_include_usage",
        "enable_request_id_headers", "stream_interval",
    ),
    "logs and diagnosis": (
        "enable_tokenizer_info_endpoint", "skip_model_name_validation", "server_dev_mode", "disable_fastapi_docs",
        "enable_log_requests", "uvicorn_log_level", "disable_uvicorn_access_log", "disable_access_log_for_endpoints",
    ),
}  # fmt: skip
_TITLES = {name: title for title, names in GROUPS.items() for name in names}


def flag_group(parser: argparse.ArgumentParser, name: str) -> argparse._ArgumentGroup:
    """The group of this flag. The first call makes all groups, in the order of the table; empty ones are not shown."""
    made = {group.title: group for group in parser._action_groups}
    for title in GROUPS:
        if title not in made:
            made[title] = parser.add_argument_group(title)
    return made[_TITLES[name]]
