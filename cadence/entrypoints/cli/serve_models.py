"""`cadence serve --models`: several models at one address."""

from __future__ import annotations

import argparse
import logging
from typing import Any, NoReturn

from cadence.config.cli import Parser
from cadence.config.command_line import argv as words
from cadence.config.local_files import check_local_files
from cadence.config.server.models_file import ModelEntry, ModelPlan, models_of
from cadence.config.server.serve_options import ServeOptions
from cadence.config.server.serve_options import names as server_options
from cadence.core.errors import CadenceError, ConfigError
from cadence.entrypoints.cli.serve_flags import build_parser, check_formats, read_flags

# What `cadence serve` may be told of one model, beside the options of its engine.
OF_A_MODEL = frozenset({
    "lora_modules", "lora_root", "response_role", "chat_template", "chat_template_content_format",
    "default_chat_template_kwargs", "trust_request_chat_template", "tool_call_parser", "tool_parser_plugin",
    "enable_auto_tool_choice", "exclude_tools_when_tool_choice_none", "reasoning_parser", "reasoning_parser_plugin",
    "return_tokens_as_token_ids", "enable_prompt_tokens_details", "enable_force_include_usage", "stream_interval",
    "max_queued_requests", "max_queued_tokens", "max_completions", "max_step_age", "engine_heartbeat_timeout",
    "engine_step_timeout", "request_deadline",
})  # fmt: skip
_NAMED = {"model": "`model`", "served_model_name": "`name` and `aliases`"}
_NOT_OPTIONS = frozenset({"help", "config"})
_ALONE = ("headless", "api_server_count")  # options whose processes have one model


class _ModelParser(Parser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message, "models")


def run_models(flags: argparse.Namespace) -> int:
    options, plans = read_plans(flags)
    from cadence.entrypoints.server.replacement import bind_or_inherit
    from cadence.entrypoints.server.several.measures import budget_of

    budget = budget_of(plans, options)
    bound, replacement = bind_or_inherit(options)
    try:
        from cadence.entrypoints.server.several.life import run_models_server
    except ImportError as error:
        raise ConfigError(f"{error.name} is missing: pip install 'cadence-llm[serve]'", "serve") from None
    if options.enable_log_requests:
        logging.getLogger("cadence.server").setLevel(logging.INFO)
    return run_models_server(plans, options, budget, (bound, replacement))


def read_plans(flags: argparse.Namespace) -> tuple[ServeOptions, list[ModelPlan]]:
    """-> the server's options, and each model's with all that the command line says for all of them"""
    shared = {name: value for name, value in vars(flags).items() if name not in ("model_tag", "config_only")}
    if flags.model_tag or "model" in shared:
        named = flags.model_tag or shared["model"]
        raise ConfigError(f"{named} beside --models: name all models there", "models")
    if "served_model_name" in shared:
        raise ConfigError("--served-model-name is for one model; --models names each", "served_model_name")
    _, options = read_flags(_namespace(shared))
    for name in _ALONE:
        if getattr(options, name) not in (False, 1):
            raise ConfigError(f"--{name.replace('_', '-')} is for one model, and not for --models", name)
    plans = [_plan(entry, shared) for entry in models_of(options.models)]
    _check_adapters(plans)
    return options, plans


def _plan(entry: ModelEntry, shared: dict[str, Any]) -> ModelPlan:
    try:
        own = _own_options(entry)
        given = {**shared, **own, "model": entry.model, "served_model_name": list(entry.names)}
        if entry.idle == "sleep":
            given.setdefault("enable_sleep_mode", True)
        args, options = read_flags(_namespace(given))
        check_local_files(args)
        check_formats(args, options)
    except CadenceError as error:
        raise ConfigError(f"--models: model {entry.name}: {error}", "models") from None
    return ModelPlan(entry, args, options)


def _own_options(entry: ModelEntry) -> dict[str, Any]:
    """As the command line would have them."""
    found = []
    for name, value in entry.options.items():
        head, dot, path = name.partition(".")
        plain = head.replace("-", "_")
        if plain in _NAMED:
            raise ConfigError(f"{name} is said by {_NAMED[plain]} of the model", "models")
        if plain in _NOT_OPTIONS or (plain in server_options() and plain not in OF_A_MODEL):
            raise ConfigError(f"{name} is not an option of one model", "models")
        found += words.words_of(words.spelled(head) + dot + path, value)
    parsed = vars(build_parser(_ModelParser).parse(found))
    return {name: value for name, value in parsed.items() if name not in ("model_tag", "config_only")}


def _namespace(given: dict[str, Any]) -> argparse.Namespace:
    return argparse.Namespace(**given, model_tag=None, config_only=frozenset())


def _check_adapters(plans: list[ModelPlan]) -> None:
    """Their names stand beside those of models."""
    from cadence.entrypoints.server.routes.served_adapters import served_at_start

    taken = [name for plan in plans for name in plan.entry.names]
    for plan in plans:
        for adapter in served_at_start(plan.options.lora_modules, (), "", enabled=True).all():
            if adapter.lora_name in taken:
                raise ConfigError(f"--models: two models or adapters are named {adapter.lora_name}", "models")
            taken.append(adapter.lora_name)
