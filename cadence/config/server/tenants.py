"""`--tenant-config`: who shares a server, by which keys, with which weight, and how much each may ask for."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from cadence.config.command_line.yaml_text import read_content
from cadence.config.server.serve_options import ServeOptions
from cadence.core.errors import ConfigError

MOST_TENANTS = 4096
_FIELD = "tenant_config"


@dataclass(frozen=True, slots=True)
class TenantSpec:
    name: str  # in metrics
    api_keys: tuple[str, ...]
    weight: float = 1.0  # of what the device computes, beside others that want it
    requests_per_minute: int = 0  # 0 = no limit, as below
    tokens_per_minute: int = 0  # of prompts, estimated when they come, and of what they may have written


def tenants_of(options: ServeOptions) -> tuple[TenantSpec, ...]:
    return read_tenants(options.tenant_config) if options.tenant_config else ()


def read_tenants(path: str) -> tuple[TenantSpec, ...]:
    """A YAML or JSON file: {"tenants": [{"name": …, "api_keys": […], "weight": 2, …}, …]}."""
    content = read_content(path, "--tenant-config", _FIELD)
    listed = content.get("tenants") if isinstance(content, dict) else None
    if not isinstance(listed, list) or not 1 <= len(listed) <= MOST_TENANTS or set(content) != {"tenants"}:
        raise ConfigError(f"--tenant-config {path}: expected `tenants`, a list of 1 to {MOST_TENANTS}", _FIELD)
    specs = tuple(_spec(each, f"--tenant-config {path}: tenant {number}") for number, each in enumerate(listed, 1))
    for what, found in (("name", [spec.name for spec in specs]), ("key", [k for s in specs for k in s.api_keys])):
        if len(found) != len(set(found)):
            raise ConfigError(f"--tenant-config {path}: two tenants have the same {what}", _FIELD)
    return specs


def _spec(given: Any, where: str) -> TenantSpec:
    if not isinstance(given, dict):
        raise ConfigError(f"{where}: expected `name`, `api_keys` and limits", _FIELD)
    known = {field.name for field in fields(TenantSpec)}
    if unknown := set(map(str, given)) - known:
        names = ", ".join(sorted(known))
        raise ConfigError(f"{where}: unknown {', '.join(sorted(unknown))}; known are {names}", _FIELD)
    keys = given.get("api_keys")
    if not isinstance(keys, list) or not keys or not all(isinstance(key, str) and key for key in keys):
        raise ConfigError(f"{where}: `api_keys` must be a list of keys", _FIELD)
    name = given.get("name")
    if not isinstance(name, str) or not name.isprintable() or not 1 <= len(name) <= 128:
        raise ConfigError(f"{where}: `name` must be a text of 1 to 128 characters", _FIELD)
    return TenantSpec(
        name=name,
        api_keys=tuple(keys),
        weight=_number(given, "weight", 1.0, where),
        requests_per_minute=int(_number(given, "requests_per_minute", 0, where)),
        tokens_per_minute=int(_number(given, "tokens_per_minute", 0, where)),
    )


def _number(given: dict[str, Any], name: str, default: float, where: str) -> float:
    """A weight is above 0 and may be a fraction; a limit is a whole number, and 0 is none."""
    value, is_weight = given.get(name, default), name == "weight"
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"{where}: `{name}` must be a number", _FIELD)
    low, high = (0.001, 1000.0) if is_weight else (0, 2**40)
    if not low <= value <= high or (not is_weight and value != int(value)):
        raise ConfigError(f"{where}: {name}={value} is not between {low:g} and {high:g}", _FIELD)
    return float(value)
