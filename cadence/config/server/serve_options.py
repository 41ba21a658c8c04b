"""What users may ask of the server, beside the engine's own options: one flat list, vLLM's names where it has one."""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass
from functools import cache
from typing import Any

from cadence.config.args import option
from cadence.config.command_line import values
from cadence.core.errors import ConfigError

LOG_LEVELS = ("critical", "error", "warning", "info", "debug", "trace")
MOST_API_SERVERS = 256
CONTENT_FORMATS = ("auto", "string", "openai")


@dataclass(frozen=True, slots=True)
class ServeOptions:
    # Where it listens
    host: str = option("127.0.0.1", "address to listen on; 0.0.0.0 = every interface")
    port: int = option(8000, "port to listen on; 0 = any free one")
    uds: str | None = option(None, "listen on this unix socket instead of a port")
    api_server_count: int = option(1, "processes that serve HTTP at this address and share the engines")
    root_path: str = option("", "path under which a proxy shows the server, whether it takes it off or not")
    ssl_keyfile: str | None = option(None, "TLS private key")
    ssl_certfile: str | None = option(None, "TLS certificate")
    ssl_ca_certs: str | None = option(None, "certificates of the authorities that sign client certificates")
    ssl_cert_reqs: int = option(0, "client certificates: 0 = not asked for, 1 = optional, 2 = required")
    ssl_ciphers: str | None = option(None, "TLS ciphers")

    # Which models, where there are several
    models: list[str] = option((), "serve several models: NAME=MODEL, or a .yaml or .json file of them")
    models_memory: int | None = option(None, "bytes that models in memory may take together (a share of all)")
    models_wait: float = option(600.0, "seconds a request may wait for its model to come into memory")

    headless: bool = option(False, "no server here: provide this node's ranks to the engine of the first node")

    # Who may ask
    api_key: list[str] = option((), "key that requests must bring; several may be given (else VLLM_API_KEY)")
    tenant_config: str | None = option(None, "YAML or JSON file of tenants: their keys, weights and limits per minute")
    protect_metrics: bool = option(False, "with api_key: /metrics, /load, /version and /ping need it too")
    share_prefix_cache: bool = option(False, "let requests of different keys share the prefix cache")
    allowed_origins: list[str] = option((), "origin whose pages may call the server (CORS); none unless given")
    allowed_methods: list[str] = option(("*",), "methods such pages may use")
    allowed_headers: list[str] = option(("*",), "headers such pages may send")
    allow_credentials: bool = option(False, "let such pages send cookies and credentials")
    middleware: list[str] = option((), "ASGI middleware of yours around the app: a class or coroutine, module.name")

    # How much it takes on
    max_queued_requests: int = option(1024, "most requests waiting beyond those that run; more get 429")
    max_queued_tokens: int = option(1_000_000, "most prompt tokens (estimated) of all requests at once; more get 429")
    request_deadline: float = option(0.0, "seconds a request may take; 0 = no limit")
    read_timeout: float = option(60.0, "seconds a client may take to send a request, head and body; 0 = no limit")
    write_timeout: float = option(60.0, "seconds a client may read nothing of its answer; 0 = no limit")
    max_connections: int = option(0, "most open connections; 0 = as many as there are descriptors, less a reserve")
    max_realtime_sessions: int = option(256, "most open sockets of /v1/realtime")
    realtime_idle_timeout: float = option(
        600.0, "seconds a client of /v1/realtime may say nothing while no response is written; 0 = no limit"
    )
    max_body_bytes: int = option(16 * 2**20, "largest request body")
    max_audio_bytes: int = option(64 * 2**20, "largest recording that may be sent")
    max_audio_seconds: int = option(7200, "longest recording that may be sent, in seconds")
    max_header_bytes: int = option(64 * 2**10, "largest request head: request line and headers together")
    max_header_count: int = option(128, "most headers of a request")
    max_held_body_bytes: int = option(256 * 2**20, "request bodies held in memory at once; further large ones wait")
    max_json_depth: int = option(64, "deepest nesting of a request's JSON")
    max_json_values: int = option(
        500_000, "most values in a request's JSON; of objects, arrays and names a fifth as many"
    )
    max_completions: int = option(1024, "most completions (prompts times n) of one request")
    max_step_age: float = option(60.0, "seconds without progress, while requests run, after which /health says so")
    engine_heartbeat_timeout: float = option(
        10.0, "seconds of silence after which the engine process is killed and started again; 0 = no limit"
    )
    engine_step_timeout: float = option(
        900.0, "seconds a step may take before the engine process is killed and started again; 0 = no limit"
    )
    event_loop_timeout: float = option(
        30.0, "seconds without a turn of the server's event loop after which it is replaced; 0 = no limit"
    )
    shutdown_timeout: float = option(30.0, "seconds that requests in flight get after SIGTERM; 0 = all they need")

    strict_requests: bool = option(False, "refuse requests with fields that have no effect, instead of naming them")

    # What answers look like
    served_model_name: list[str] = option((), "name of the model in the API; several may be given (else its own)")
    lora_modules: list[str] = option((), "adapter to serve under a name: NAME=PATH; several may be given")
    allow_runtime_lora_updating: bool = option(False, "let requests load and unload adapters")
    lora_root: str = option("", "directory under which adapters must lie that requests load (else anywhere)")
    response_role: str = option("assistant", "role of the answers")
    chat_template: str = option("", "chat template, or the path of a file holding one")
    chat_template_content_format: str = option("auto", "how templates see message content", CONTENT_FORMATS)
    default_chat_template_kwargs: dict[str, Any] = option({}, "JSON with variables for the chat template")
    trust_request_chat_template: bool = option(False, "let requests bring a chat template of their own")
    tool_call_parser: str = option("", "how the model writes tool calls [as its chat template shows]")
    tool_parser_plugin: str = option("", "Python file that registers tool formats; it is run at the start")
    enable_auto_tool_choice: bool = option(False, "where the format of calls cannot be detected, assume hermes")
    exclude_tools_when_tool_choice_none: bool = option(False, "hide the tools when tool_choice is none")
    reasoning_parser: str = option("", "how the model writes its reasoning; auto = as its chat template shows")
    reasoning_parser_plugin: str = option("", "Python file that registers reasoning formats; it is run at the start")
    return_tokens_as_token_ids: bool = option(False, "write tokens in logprobs as token_id:N")
    enable_prompt_tokens_details: bool = option(False, "count cached prompt tokens in usage")
    enable_force_include_usage: bool = option(False, "end every stream with its usage")
    enable_request_id_headers: bool = option(False, "answer with the header X-Request-Id")
    stream_interval: int = option(1, "tokens per event of a stream; a request may bring its own")

    # What it says about itself
    enable_tokenizer_info_endpoint: bool = option(False, "serve /tokenizer_info: the tokenizer's config and template")
    skip_model_name_validation: bool = option(
        False, "answer to every name of a model (else VLLM_SKIP_MODEL_NAME_VALIDATION)"
    )
    server_dev_mode: bool = option(False, "serve /server_info and /reset_prefix_cache (else VLLM_SERVER_DEV_MODE)")
    disable_fastapi_docs: bool = option(False, "no /docs, /redoc and /openapi.json")
    enable_log_requests: bool = option(False, "log a line per request; never its text")
    uvicorn_log_level: str = option("warning", "log level of the HTTP layer", LOG_LEVELS)
    disable_uvicorn_access_log: bool = option(False, "no line per request at uvicorn_log_level info and below")
    disable_access_log_for_endpoints: str = option("", "paths without such a line, separated by commas")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, _checked(field, getattr(self, field.name)))
        for name in ("max_queued_requests", "max_queued_tokens", "max_body_bytes", "max_header_bytes"):
            _at_least(self, name, 1)
        for name in ("max_header_count", "max_held_body_bytes", "max_json_depth", "max_json_values", "max_completions"):
            _at_least(self, name, 1)
        _at_least(self, "max_realtime_sessions", 1)
        _at_least(self, "realtime_idle_timeout", 0)
        for name in ("max_audio_bytes", "max_audio_seconds"):
            _at_least(self, name, 1)
        for name in ("stream_interval", "models_wait"):
            _at_least(self, name, 1)
        if self.models_memory is not None:
            _at_least(self, "models_memory", 1)
        for name in ("port", "request_deadline", "read_timeout", "write_timeout", "max_connections"):
            _at_least(self, name, 0)
        for name in ("max_step_age", "shutdown_timeout"):
            _at_least(self, name, 0)
        for name in ("engine_heartbeat_timeout", "engine_step_timeout", "event_loop_timeout"):
            _at_least(self, name, 0)
        if not 1 <= self.api_server_count <= MOST_API_SERVERS:
            limit = f"between 1 and {MOST_API_SERVERS}"
            raise ConfigError(f"api_server_count={self.api_server_count} is not {limit}", "api_server_count")
        object.__setattr__(self, "root_path", _as_prefix(self.root_path))
        if self.port > 65535:
            raise ConfigError(f"port={self.port} is not a port: at most 65535", "port")
        if bool(self.ssl_keyfile) != bool(self.ssl_certfile):
            raise ConfigError("ssl_keyfile and ssl_certfile are given together or not at all", "ssl_keyfile")
        if any(not key for key in self.api_key):
            raise ConfigError("api_key must not be empty", "api_key")


@cache
def hints() -> dict[str, Any]:
    """The types of the fields, by name. Read once: it takes 2 ms, and every field is held to its own."""
    return typing.get_type_hints(ServeOptions)


def names() -> list[str]:
    return [field.name for field in dataclasses.fields(ServeOptions)]


def _checked(field: dataclasses.Field[Any], value: Any) -> Any:
    if value is None and field.default is not dataclasses.MISSING:
        value = field.default
    value = values.coerce(field.name, hints()[field.name], value)
    choices = field.metadata["choices"]
    if choices and value not in choices:
        raise ConfigError(f"{field.name}={value!r} is not one of {', '.join(choices)}", field.name)
    return value


def _as_prefix(path: str) -> str:
    """`llm/` -> `/llm`; `/` is none."""
    bare = path.strip("/")
    return f"/{bare}" if bare else ""


def _at_least(options: ServeOptions, name: str, low: int) -> None:
    if getattr(options, name) < low:
        raise ConfigError(f"{name}={getattr(options, name)} must be at least {low}", name)
