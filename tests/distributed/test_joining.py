"""Who may join an engine, and what each is told: one sentence where it cannot."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cadence.config.args import EngineArgs
from cadence.config.reference import find_model
from cadence.core.contract.messages import LACKS_RANKS
from cadence.core.errors import ConfigError, EngineDeadError, RanksMissingError
from cadence.distributed.mesh import Mesh
from cadence.engine.core_process import build_core
from cadence.executor.local.joining import (
    RANK,
    Hello,
    Offers,
    Ticket,
    decode_welcome,
    encode_joining,
    refusal,
    welcomes,
)
from cadence.executor.local.rank_group import RankGroup
from cadence.executor.network.model_digest import model_digest
from cadence.executor.network.network_ranks import NetworkRanks
from cadence.executor.network.rank_areas import uses_of
from cadence.executor.network.rank_listener import RankListener
from cadence.executor.network.remote_rank import Inbox
from cadence.process.ended import PARENT_GONE
from cadence.process.handshake import dial, read_secret
from cadence.process.message_socket import MessageSocket, listen
from cadence.process.messages import ClosedError
from tests.helpers.headless_node import free_port, start_node

pytestmark = [pytest.mark.engine, pytest.mark.warm]  # a tiny model is made, and none is loaded

MESH = Mesh(0, 2)


class NoLauncher:
    """Somebody else starts the ranks."""

    def __init__(self, dead: str = "") -> None:
        self.dead = dead

    def start(self, ticket: Ticket) -> None:
        """Nothing to do."""

    def death(self) -> str:
        return self.dead

    def end(self) -> None:
        """Nothing to end."""


def hello(rank: int, host: str = "a", mesh: Mesh = MESH) -> Hello:
    offers = Offers(() if rank % mesh.tensor_parallel else (7,), () if rank else (20, 21, 22, 23))
    return Hello(mesh.at(rank), 2, host, f"host-{host}", 100 + rank, "digest", offers, (host, rank))


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("secret") / "secret"
    file.write_text("a secret of this launch alone")
    return file


@pytest.fixture(scope="module")
def model(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("llama")


@pytest.fixture
def listening(secret: Path, model: Path) -> Iterator[tuple[RankListener, int]]:
    """-> one that listens, and its port"""
    listener = listen(("127.0.0.1", 0))
    address = ("127.0.0.1", listener.getsockname()[1])
    expected = Ticket(address, read_secret(str(secret)), MESH, 0, 2, "", model_digest(find_model(str(model))))
    over = threading.Event()
    with RankListener(listener, expected) as made:

        def serve() -> None:
            while not over.is_set():
                made.wait(0.05)

        thread = threading.Thread(target=serve)
        thread.start()
        yield made, address[1]
        over.set()
        thread.join()


def test_ranks_on_one_host_share_memory_and_those_on_several_connect() -> None:
    near = welcomes([hello(0), hello(1)], 4)
    assert [(each.place, each.num_on_host, each.together, each.ranks) for each in near] == [
        (0, 2, (100, (7,)), ()),
        (1, 2, (100, (7,)), ()),
    ]
    far = welcomes([hello(0), hello(1, "b")], 4)
    addresses = (("a", 0), ("b", 1))
    assert [(each.place, each.num_on_host, each.together, each.ranks) for each in far] == [
        (0, 1, (0, ()), addresses),
        (0, 1, (0, ()), addresses),
    ]
    assert all(each.is_stage_apart for each in far) and not any(each.is_stage_apart for each in near)


def test_stages_on_hosts_of_their_own_share_memory_inside_and_connect_outside() -> None:
    mesh = Mesh(0, 2, 2)
    made = welcomes([hello(rank, "ab"[rank // 2], mesh) for rank in range(4)], 0)
    assert [each.place for each in made] == [0, 1, 0, 1] and not any(each.is_stage_apart for each in made)
    assert [each.together for each in made] == [(100, (7,))] * 2 + [(102, (7,))] * 2
    assert all(len(each.ranks) == 4 and each.links == (0, ()) for each in made)
    near = welcomes([hello(rank, "a", mesh) for rank in range(4)], 0)
    assert [each.links for each in near] == [(100, (20, 21)), (100, (22, 23))] * 2


@pytest.mark.parametrize("mesh", [Mesh(0, 1, 2), Mesh(0, 2, 2), Mesh(0, 3, 1), Mesh(0, 2, 4), Mesh(0, 1, 5)])
def test_every_connection_has_two_ends(mesh: Mesh) -> None:
    hellos = [hello(rank, f"{rank}", mesh) for rank in range(mesh.world_size)]
    uses = [uses_of(each.mesh, welcome) for each, welcome in zip(hellos, welcomes(hellos, 0), strict=True)]
    ends = sorted((kind, *sorted((rank, other))) for rank, some in enumerate(uses) for kind, other in some)
    assert ends[::2] == ends[1::2] and len(set(ends)) == len(ends) // 2
    size, stages = mesh.tensor_parallel, mesh.pipeline_parallel
    assert len(ends) // 2 == stages * size * (size - 1) // 2 + 2 * size * (stages - 1)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"num_nodes": 3}, "nnodes=3, the first with nnodes=2"),
        ({"mesh": Mesh(1, 4)}, "tensor_parallel_size=4, the first with tensor_parallel_size=2"),
        ({"mesh": Mesh(1, 2, 2)}, "pipeline_parallel_size=2"),
        ({"digest": "other"}, "another model"),
        ({"version": "0.0.1"}, "version 0.0.1"),
        ({}, ""),
        ({"digest": ""}, ""),  # it takes the engine's
    ],
)
def test_what_does_not_fit_is_named(changed: dict[str, object], said: str) -> None:
    ticket = Ticket(("a", 1), b"", MESH, 0, 2, "", "digest")
    found = refusal(replace(hello(1), **changed), ticket)  # type: ignore[arg-type]
    assert said in found and bool(said) == bool(found)


def test_two_nodes_of_one_rank(listening: tuple[RankListener, int], secret: Path, model: Path) -> None:
    made, port = listening
    known = read_secret(str(secret))
    digest = model_digest(find_model(str(model)))
    one, other = (dial(("127.0.0.1", port), known, RANK) for _ in range(2))
    one.write(encode_joining(replace(hello(1), digest=digest)))
    while made.missing() != [0]:
        time.sleep(0.01)  # until it is seated
    other.write(encode_joining(replace(hello(1, "b"), digest=digest)))
    assert "rank 1 has joined already, from host-a" in decode_welcome(other.read(60)).refusal
    one.release()
    other.release()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--nnodes=4", "--tensor-parallel-size=4"), "nnodes=4, the first with nnodes=2"),
        (("--tensor-parallel-size=4",), "tensor_parallel_size=4, the first with"),
        (("--node-secret-file={other}",), "it has another secret (node_secret_file)"),
        (("--model={copy}",), "another model than the first"),
    ],
    ids=["nodes", "ranks", "secret", "model"],
)
def test_a_node_that_cannot_join_says_why_and_ends(
    listening: tuple[RankListener, int], secret: Path, model: Path, tmp_path: Path, flags: tuple[str, ...], said: str
) -> None:
    (tmp_path / "other").write_text("a secret of another launch")
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in model.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    (copy / "config.json").write_text((model / "config.json").read_text() + "\n")
    named = [flag.format(other=tmp_path / "other") for flag in flags if not flag.startswith("--model")]
    node = start_node(copy if "--model={copy}" in flags else model, secret, listening[1], *named)
    _, errors = node.communicate(timeout=120)
    assert node.returncode == 1
    assert said in errors and "Traceback" not in errors


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"nnodes": 2}, "nnodes=2 does not divide 1 ranks"),
        ({"nnodes": 2, "tensor_parallel_size": 2}, "nnodes=2 needs node_secret_file"),
        ({"node_rank": 1}, "node_rank=1 is not below nnodes=1"),
        ({"nnodes": 2, "tensor_parallel_size": 2, "distributed_executor_backend": "ray"}, "nnodes=2 goes with"),
        ({"master_port": 0}, "master_port=0"),
    ],
)
def test_flags_that_cannot_be(options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        EngineArgs(model="x", **options)  # type: ignore[arg-type]


def test_an_engine_waits_for_its_ranks_so_long_and_no_longer() -> None:
    ticket = Ticket(("127.0.0.1", 0), b"secret", MESH)
    with pytest.raises(RanksMissingError, match=rf"{LACKS_RANKS} within 0.3 s; missing: 0, 1"):
        RankGroup(NetworkRanks(NoLauncher(), ticket, 0, join_s=0.3))
    with pytest.raises(EngineDeadError, match="rank 1 is broken"):
        RankGroup(NetworkRanks(NoLauncher("rank 1 is broken"), ticket, 0, join_s=30))


class FakeRanks(NoLauncher):
    """Ranks that join. The first then gives heartbeats; `said` is done to the connections of others, all the time."""

    def __init__(self, said: Callable[[MessageSocket], None]) -> None:
        super().__init__()
        self._said = said
        self._is_over = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, ticket: Ticket) -> None:
        for rank in range(ticket.mesh.world_size):
            self._threads.append(threading.Thread(target=self._live, args=(ticket, rank), daemon=True))
            self._threads[-1].start()

    def end(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _live(self, ticket: Ticket, rank: int) -> None:
        connection = dial(ticket.address, ticket.secret, RANK)
        connection.write(encode_joining(replace(hello(rank), digest=ticket.digest, num_nodes=ticket.num_nodes)))
        assert not decode_welcome(connection.read(60)).refusal
        while not self._is_over.wait(0.05):
            if rank == 0:
                connection.beat()
            else:
                self._said(connection)
        connection.release()


@contextlib.contextmanager
def joined(fakes: FakeRanks, silence_s: float) -> Iterator[tuple[RankGroup, NetworkRanks]]:
    ticket = Ticket(("127.0.0.1", 0), b"a secret of this launch alone", MESH, 0, 2, "", "digest")
    ranks = NetworkRanks(fakes, ticket, 0, silence_s=silence_s)
    group = RankGroup(ranks)
    try:
        yield group, ranks
    finally:
        group.end()


def test_an_engine_that_is_started_again_waits_as_long_as_it_is_told(secret: Path, model: Path) -> None:
    where: dict[str, Any] = {"nnodes": 2, "tensor_parallel_size": 2, "node_secret_file": str(secret)}
    args = EngineArgs(str(model), master_port=free_port(), dtype="float32", max_model_len=64, **where)
    with pytest.raises(RanksMissingError, match=rf"{LACKS_RANKS} within 0.25 s; missing: .*1"):
        build_core(args, join_s=0.25)


def test_a_rank_leaves_an_engine_that_is_silent() -> None:
    """Its connection stays open, as that of a tunnel does."""
    with listen(("127.0.0.1", 0)) as listener:
        engine = MessageSocket(socket.create_connection(listener.getsockname()))
        own = MessageSocket(listener.accept()[0])
    left: queue.SimpleQueue[int] = queue.SimpleQueue()
    inbox = Inbox(own, b"last", silence_s=0.3, leave=left.put)
    try:
        engine.write(b"a message")
        assert inbox.read(60) == b"a message"
        assert left.get(timeout=60) == PARENT_GONE
    finally:
        engine.release()
        own.release()


def test_a_rank_that_gives_no_heartbeat_is_given_up() -> None:
    """Its connection stays open. The other rank gives them, and is not named."""
    with joined(FakeRanks(lambda connection: None), silence_s=3.0) as (group, ranks):
        with pytest.raises(ClosedError):
            ranks.results[1].read(60)
        assert group.death == f"{ranks.results[1].hello.name} gave no heartbeat for 3 s"


def test_a_rank_whose_connection_ends_is_gone() -> None:
    with joined(FakeRanks(MessageSocket.close), silence_s=1000.0) as (group, ranks):
        with pytest.raises(ClosedError):
            ranks.results[0].read(60)
        assert f"{ranks.results[1].hello.name} is gone" in group.death


def test_a_port_that_is_taken_is_named() -> None:
    with listen(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(EngineDeadError, match=f"cannot listen for ranks at 127.0.0.1:{port}"):
            NetworkRanks(NoLauncher(), Ticket(("127.0.0.1", port), b"secret", MESH), 0)
