"""Every flag of vLLM's server (2026-08) beside those of the engine, and what becomes of it here: one line each."""

from __future__ import annotations

from cadence.config.peers.peer_flag import FlagKind, Group, no_effect, refused, works

LIST = FlagKind.LIST

NO_COHERE = "of Cohere's API embeddings and rankings are served, and no chats"
NO_SUPERVISOR = "one server starts all engines of its address, and nothing is above it"
FINGERPRINT = "system_fingerprint names the version"
NEVER_LOGGED = "prompts and outputs are never logged"

SERVER_GROUPS = (
    Group("Frontend", (
        works("lora_modules"),
        works("chat_template"),
        works("chat_template_content_format"),
        works("trust_request_chat_template"),
        works("default_chat_template_kwargs"),
        works("response_role"),
        works("return_tokens_as_token_ids"),
        works("enable_auto_tool_choice"),
        works("exclude_tools_when_tool_choice_none"),
        works("tool_call_parser"),
        works("tool_parser_plugin", "the file registers formats as using/tools.md shows, not classes of vLLM"),
        refused("tool_server", None, "tools are called by the client"),
        refused("log_config_file", None, "logs are lines on stderr; set the level with CADENCE_LOG_LEVEL"),
        no_effect("max_log_len", None, NEVER_LOGGED),
        works("enable_prompt_tokens_details"),
        refused("enable_per_request_metrics", False, "timings are on /metrics"),
        no_effect("enable_server_load_tracking", False, "/load always counts"),
        works("enable_force_include_usage"),
        works("enable_tokenizer_info_endpoint"),
        refused("enable_log_outputs", False, NEVER_LOGGED),
        no_effect("enable_log_deltas", (True, False), NEVER_LOGGED),
        no_effect("cohere_is_reasoning_model", True, NO_COHERE),
        no_effect("cohere_format", "cmd4", NO_COHERE),
        no_effect("log_error_stack", False, "bugs are always logged with their stack"),
        refused("tokens_only", False, "every endpoint is always served"),
        refused("fingerprint_mode", "full", FINGERPRINT, choices=("full", "hash", "custom", "none")),
        refused("fingerprint_value", None, FINGERPRINT),
        works("host", "default: 127.0.0.1"),
        works("port"),
        no_effect("data_parallel_supervisor_port", 9256, NO_SUPERVISOR),
        no_effect("dp_supervisor_probe_interval_s", 5, NO_SUPERVISOR),
        no_effect("dp_supervisor_probe_timeout_s", 5, NO_SUPERVISOR),
        no_effect("dp_supervisor_probe_failure_threshold", 3, NO_SUPERVISOR),
        works("uds"),
        works("uvicorn_log_level", "default: warning"),
        works("disable_uvicorn_access_log"),
        works("disable_access_log_for_endpoints"),
        works("allow_credentials"),
        works("allowed_origins", "default: none, so that no page of another site can use the server"),
        works("allowed_methods"),
        works("allowed_headers"),
        works("api_key", "closes every path but those named in using/server.md; also as x-api-key and Basic"),
        works("ssl_keyfile"),
        works("ssl_certfile"),
        works("ssl_ca_certs"),
        refused("enable_ssl_refresh", False, "restart the server to load a new certificate"),
        works("ssl_cert_reqs"),
        works("ssl_ciphers"),
        works("root_path"),
        works("middleware"),
        works("enable_request_id_headers"),
        works("disable_fastapi_docs"),
        works("h11_max_incomplete_event_size", "as --max-header-bytes", means="max_header_bytes"),
        works("h11_max_header_count", "as --max-header-count", means="max_header_count"),
        no_effect("enable_offline_docs", False, "/docs loads nothing from other hosts"),
        no_effect("enable_flash_late_interaction", True, "scores of pairs are computed as all others are"),
    )),
    Group("Arguments of serve", (
        works("headless"),
        works("api_server_count", "1 unless given, whatever --data-parallel-size is", short="-asc"),
        works("config", "YAML or JSON; flags given by hand win over it"),
        refused("grpc", False, "HTTP is served, not gRPC"),
    )),
)  # fmt: skip
