"""Whose code computes a model: a file of ours, a class that a program has registered, or transformers'."""

from __future__ import annotations

from dataclasses import dataclass

AUTO, BY_HAND, TRANSFORMERS = "auto", "cadence", "transformers"
MODEL_IMPLS = (AUTO, BY_HAND, TRANSFORMERS, "vllm")  # the last is what scripts for vLLM call the second


@dataclass(frozen=True, slots=True)
class Implementation:
    through_transformers: bool = False
    model_type: str = ""  # transformers' name of the family; "" where its configuration comes with the model, as code
    runs_remote_code: bool = False  # the model's folder has the classes
    class_path: str = ""  # "package.module:Class" of one that is not in this package


OURS = Implementation()
