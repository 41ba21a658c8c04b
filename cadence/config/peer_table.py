"""All flags of vLLM in one table, by name."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType

from cadence.config.peer_flag import Group, PeerFlag, Support
from cadence.config.peer_flags import ENGINE_GROUPS, REMOVED
from cadence.config.peer_server_flags import SERVER_GROUPS

GROUPS: tuple[Group, ...] = (*ENGINE_GROUPS, *SERVER_GROUPS, REMOVED)


@functools.cache
def flags() -> Mapping[str, PeerFlag]:
    return MappingProxyType({flag.name: flag for group in GROUPS for flag in group.flags})


@functools.cache
def server_only() -> frozenset[str]:
    """Names that vLLM's engine does not know: only its server has them."""
    return frozenset(flag.name for group in SERVER_GROUPS for flag in group.flags)


def not_here() -> list[PeerFlag]:
    """Those without an option of ours behind them."""
    return [flag for flag in flags().values() if flag.support is not Support.WORKS or flag.means]
