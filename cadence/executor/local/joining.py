"""How a rank that comes over the network joins an engine: what both tell each other first."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass

import msgspec

from cadence.config.version import __version__
from cadence.distributed.machine_id import machine_id, namespace
from cadence.distributed.mesh import Mesh
from cadence.process.message_socket import Address

RANK = b"rank"  # purposes of connections: to the engine,
PEER = b"peer"  # and among ranks
BUSY = b"B"  # kind of a message from a rank, beside those of `wire`: seconds that it has computed
_BUSY = struct.Struct("<d")
JOIN_S = 300.0  # for all ranks to be there, and for an engine to be found


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a rank is started with."""

    address: Address  # of the engine
    secret: bytes
    mesh: Mesh
    node: int = 0  # ranks of one node share memory and cores
    num_nodes: int = 1
    model: str = ""  # where this node has it; "" = where the engine says
    digest: str = ""  # of that model
    num_engines: int = 1  # that the nodes have ranks of


@dataclass(frozen=True, slots=True)
class Offers:
    """Descriptors, in the process of a rank, of memory for ranks on its machine."""

    together: tuple[int, ...] = ()  # for its stage to compute in: one, by the first rank of a stage
    links: tuple[int, ...] = ()  # between stages: by the first rank of all, for each place as `create_links` has them


@dataclass(frozen=True, slots=True)
class Hello:
    """From a rank."""

    mesh: Mesh
    num_nodes: int
    host: str  # ranks with the same can share memory and must share cores
    host_name: str
    pid: int
    digest: str  # of its model; "" = it takes the engine's
    offers: Offers  # memory that it has made
    reachable_at: Address  # by other ranks
    version: str = __version__
    num_engines: int = 1

    @property
    def name(self) -> str:
        return f"the worker of rank {self.mesh.rank} (process {self.pid} on {self.host_name})"


@dataclass(frozen=True, slots=True)
class Welcome:
    """The engine's answer, once all ranks are there."""

    refusal: str = ""  # why this rank cannot join; the rest is void then
    place: int = 0  # among the ranks on its host
    num_on_host: int = 1
    num_threads: int = 0  # of all of them together; 0 = as many as are worth having
    together: tuple[int, tuple[int, ...]] = (0, ())  # process and descriptor of the memory of its stage, if they share
    links: tuple[int, tuple[int, ...]] = (0, ())  # process and descriptors of the links of its place, if all share
    ranks: tuple[Address, ...] = ()  # where all are reached; () = all are on one machine
    is_stage_apart: bool = False  # it reaches those of its stage by connections


def encode_joining(value: Ticket | Hello | Welcome) -> bytes:
    return msgspec.msgpack.encode(value)


def decode_ticket(data: bytes) -> Ticket:
    return msgspec.msgpack.decode(data, type=Ticket)


def decode_hello(data: bytes) -> Hello:
    return msgspec.msgpack.decode(data, type=Hello)


def decode_welcome(data: bytes) -> Welcome:
    return msgspec.msgpack.decode(data, type=Welcome)


def encode_busy(seconds: float) -> bytes:
    return BUSY + _BUSY.pack(seconds)


def decode_busy(data: bytes) -> float:
    seconds: float = _BUSY.unpack(data)[0]
    return seconds


def host_key(node: int) -> str:
    """The same for processes that can open each other's memory."""
    return f"{machine_id()} {namespace('pid')} {os.getuid()} {node}"


def refusal(hello: Hello, expected: Ticket) -> str:
    """Why a rank cannot be one of this engine's; "" = it can. expected: what its ticket should say, but for its rank"""
    mesh, wanted = hello.mesh, expected.mesh
    if hello.version != __version__:
        return f"this is version {hello.version}, the first node has {__version__}"
    for name, theirs, ours in (
        ("nnodes", hello.num_nodes, expected.num_nodes),
        ("tensor_parallel_size", mesh.tensor_parallel, wanted.tensor_parallel),
        ("pipeline_parallel_size", mesh.pipeline_parallel, wanted.pipeline_parallel),
        ("data_parallel_size", hello.num_engines, expected.num_engines),
    ):
        if theirs != ours:
            return f"this node was started with {name}={theirs}, the first with {name}={ours}"
    if hello.digest and hello.digest != expected.digest:
        return "this node has another model than the first: its config or the sizes of its weight files differ"
    return ""


def welcomes(hellos: list[Hello], num_threads: int) -> list[Welcome]:
    """By rank. num_threads: of a host"""
    apart = len({hello.host for hello in hellos}) > 1
    ranks = tuple(hello.reachable_at for hello in hellos) if apart else ()
    return [_welcome(hello, hellos, num_threads, ranks) for hello in hellos]


def _welcome(hello: Hello, hellos: list[Hello], num_threads: int, ranks: tuple[Address, ...]) -> Welcome:
    mesh, first = hello.mesh, hellos[0]
    on_host = [other for other in hellos if other.host == hello.host]
    stage = [other for other in hellos if other.mesh.pp_rank == mesh.pp_rank]
    is_stage_apart = len({other.host for other in stage}) > 1
    each = 2 * (mesh.pipeline_parallel - 1)  # links of one place
    return Welcome(
        place=on_host.index(hello),
        num_on_host=len(on_host),
        num_threads=num_threads,
        together=(0, ()) if is_stage_apart else (stage[0].pid, stage[0].offers.together),
        links=(0, ()) if ranks else (first.pid, first.offers.links[mesh.tp_rank * each :][:each]),
        ranks=ranks,
        is_stage_apart=is_stage_apart,
    )
