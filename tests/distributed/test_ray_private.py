"""What `ray_ranks.py` takes from Ray that is not documented is there."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
from pathlib import Path

import pytest


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
def test_ray_decides_by_a_constant_whether_it_forms_clusters() -> None:
    """Read off its source: importing Ray takes seconds."""
    spec = importlib.util.find_spec("ray")
    assert spec is not None and spec.origin is not None
    constants = Path(spec.origin).parent / "_private/ray_constants.py"
    version = importlib.metadata.version("ray")
    assert constants.is_file(), f"ray {version} has no ray._private.ray_constants, which ray_ranks.py changes"
    names = [node.id for node in ast.walk(ast.parse(constants.read_text())) if isinstance(node, ast.Name)]
    assert "ENABLE_RAY_CLUSTER" in names, f"ray {version} lacks ENABLE_RAY_CLUSTER: ranks would listen on all addresses"
