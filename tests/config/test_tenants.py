"""`--tenant-config`: what it may say, and how what it may not is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cadence.config.server.tenants import TenantSpec, read_tenants
from cadence.core.errors import ConfigError

YAML = """
tenants:
  - name: research
    api_keys: [sk-one, sk-two]
    weight: 2.5
    requests_per_minute: 600
  - {name: web, api_keys: [sk-three], tokens_per_minute: 20000}
"""
EXPECTED = (
    TenantSpec("research", ("sk-one", "sk-two"), 2.5, 600, 0),
    TenantSpec("web", ("sk-three",), 1.0, 0, 20000),
)
ANNA = {"name": "anna", "api_keys": ["a"]}


def test_a_file_of_tenants_is_read(tmp_path: Path) -> None:
    (tmp_path / "tenants.yaml").write_text(YAML)
    assert read_tenants(str(tmp_path / "tenants.yaml")) == EXPECTED
    content = {"tenants": [{"name": "web", "api_keys": ["sk-three"], "tokens_per_minute": 20000}]}
    (tmp_path / "tenants.json").write_text(json.dumps(content))
    assert read_tenants(str(tmp_path / "tenants.json")) == EXPECTED[1:]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ([], "expected `tenants`"), ({"tenants": []}, "expected `tenants`"), ({"tenants": [ANNA], "x": 1}, "`tenants`"),
        ({"tenants": ["anna"]}, "tenant 1: expected"), ({"tenants": [{"name": "anna"}]}, "`api_keys`"),
        ({"tenants": [{"api_keys": ["a"]}]}, "`name`"), ({"tenants": [{**ANNA, "name": "a\nb"}]}, "`name`"),
        ({"tenants": [{**ANNA, "api_keys": [""]}]}, "`api_keys`"), ({"tenants": [ANNA, ANNA]}, "same name"),
        ({"tenants": [ANNA, {**ANNA, "name": "bert"}]}, "same key"),
        ({"tenants": [{**ANNA, "wait": 1}]}, "unknown wait"),
        ({"tenants": [ANNA, {**ANNA, "weight": 0}]}, "tenant 2: weight=0"),
        ({"tenants": [{**ANNA, "weight": True}]}, "number"),
        ({"tenants": [{**ANNA, "requests_per_minute": -1}]}, "requests_per_minute=-1"),
        ({"tenants": [{**ANNA, "tokens_per_minute": 0.5}]}, "tokens_per_minute=0.5"),
        ({"tenants": [{**ANNA, "weight": float("nan")}]}, "`weight` must be a number"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_named(tmp_path: Path, content: Any, says: str) -> None:
    path = tmp_path / "tenants.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="tenant-config") as caught:
        read_tenants(str(path))
    assert says in str(caught.value) and caught.value.field == "tenant_config"


@pytest.mark.parametrize("text", ["{", "tenants: [", "\x00"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    for path in (tmp_path / "t.json", tmp_path / "t.yaml"):
        path.write_text(text)
        with pytest.raises(ConfigError, match="tenant-config"):
            read_tenants(str(path))
    with pytest.raises(ConfigError, match="No such file"):
        read_tenants(str(tmp_path / "none"))
