"""Whose names these are, and who answers to them."""

from cadence.config.version import __version__ as _cadence

NAMES_OF = (0, 28, 0)  # the version of vLLM whose names and signatures are meant

__version__ = ".".join(map(str, NAMES_OF)) + f"+cadence.{_cadence}"
__version_tuple__ = NAMES_OF
