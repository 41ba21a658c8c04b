"""Weights: files to parameters. `load_model` is the door."""

from cadence.models.loader.load import load_model

__all__ = ["load_model"]
