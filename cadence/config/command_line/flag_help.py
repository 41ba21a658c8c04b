"""What `--help=TOPIC` prints: a group of flags, or the flags whose name has a word in it, with those of
vLLM's that have no effect here or are refused."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from cadence.config.peers import peer_table
from cadence.config.peers.peer_flag import PeerFlag, Support


def about(topic: str, groups: Mapping[str, Sequence[argparse.Action]], actions: Sequence[argparse.Action]) -> str:
    """`groups`: the command's own. "" where the topic is `all`."""
    word = topic.lower().replace("_", "-")
    if word == "all":
        return ""
    own = [action for title, members in groups.items() if title.lower() == word for action in members]
    peers = [flag for group in peer_table.GROUPS if group.title.lower() == word for flag in group.flags]
    if not own and not peers:
        own = [action for action in actions if any(word in name for name in action.option_strings)]
        peers = [flag for flag in peer_table.FLAGS.values() if word in flag.flag]
    return _listed(own, peers, actions) or f"no group and no flag has {topic!r} in its name; --help lists all"


def others() -> str:
    """Flags of vLLM's that are taken for its users' sake."""
    lines = [_peer_line(flag) for flag in peer_table.not_here()]
    return "\n".join(["flags of vLLM that have no effect here, or are refused:", *lines])


def _listed(own: Sequence[argparse.Action], peers: Sequence[PeerFlag], actions: Sequence[argparse.Action]) -> str:
    by_dest = {action.dest: action for action in actions if action.option_strings}
    shown = {action.dest: action for action in own if action.help is not argparse.SUPPRESS}
    shown |= {flag.name: by_dest[flag.name] for flag in peers if flag.name in by_dest}
    lines = [_own_line(action) for action in shown.values()]
    return "\n".join([*lines, *(_peer_line(flag) for flag in peers if flag.name not in shown)])


def _own_line(action: argparse.Action) -> str:
    return f"  {', '.join(action.option_strings)}\n      {(action.help or '').replace('%%', '%')}"


def _peer_line(flag: PeerFlag) -> str:
    support = flag.support.value if flag.support is not Support.WORKS else "works"
    return f"  {', '.join(filter(None, [flag.flag, flag.short]))}\n      {support}: {flag.why}".rstrip(": ")
