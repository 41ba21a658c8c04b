"""All flags of vLLM in one table, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from cadence.config.peers.peer_flag import Group, PeerFlag, Support
from cadence.config.peers.peer_flags import ENGINE_GROUPS, REMOVED
from cadence.config.peers.peer_server_flags import SERVER_GROUPS

GROUPS: tuple[Group, ...] = (*ENGINE_GROUPS, *SERVER_GROUPS, REMOVED)

FLAGS: Mapping[str, PeerFlag] = MappingProxyType({flag.name: flag for group in GROUPS for flag in group.flags})
SERVER_ONLY = frozenset(flag.name for group in SERVER_GROUPS for flag in group.flags)  # unknown to vLLM's engine


def not_here() -> list[PeerFlag]:
    """Those that stand for no option of ours."""
    return [flag for flag in FLAGS.values() if flag.support is not Support.WORKS or flag.means]
