"""Names whose feature Cadence lacks: they can be imported and stand in annotations; using them says why they fail."""

from __future__ import annotations

from typing import Any, NoReturn

from cadence.core.errors import CadenceError


class MissingFeatureError(CadenceError, NotImplementedError):
    """The feature that a name stands for is not in this version."""


class _Missing(type):
    """Makes classes that cannot be made objects of, nor asked for their methods."""

    why: str

    def __call__(cls, *args: object, **keywords: object) -> NoReturn:
        raise MissingFeatureError(f"{cls.__name__} cannot be used: {cls.why}")

    def __getattr__(cls, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise MissingFeatureError(f"{cls.__name__}.{name} cannot be used: {cls.why}")


def missing(name: str, why: str) -> Any:
    return _Missing(name, (), {"why": why, "__doc__": why})
