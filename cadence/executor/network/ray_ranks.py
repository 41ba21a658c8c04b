"""Ranks as Ray actors: Ray decides on which machines they run and starts them there; then they join the engine as any
other rank does, and Ray carries no message of a step."""

from __future__ import annotations

import contextlib
import logging
import shutil
import tempfile
from dataclasses import replace
from typing import Any

from cadence.config import env
from cadence.config.engine_config import EngineConfig
from cadence.core.errors import ConfigError, EngineDeadError
from cadence.device.base import DeviceCaps
from cadence.distributed.mesh import Mesh
from cadence.executor.interface.opened import OpenExecutor, Processors
from cadence.executor.local.joining import Ticket, decode_ticket, encode_joining
from cadence.executor.local.processes import check_processors, open_group
from cadence.executor.network.network_ranks import NetworkRanks
from cadence.process.handshake import new_secret

LOOPBACK = "127.0.0.1"
PLACE_S = 60.0  # for Ray to find room for the ranks
OBJECT_STORE_BYTES = 80 << 20  # of a cluster of our own: nothing is put there

logger = logging.getLogger("cadence.executor")
Bundle = dict[str, float]


class RankActor:
    """One rank, in a process that Ray has started."""

    def run(self, ticket: bytes) -> int:
        """Returns when the rank has been told to stop, with its exit status."""
        from cadence.executor.network.remote_rank import run_rank

        logging.basicConfig(level=env.log_level(), format="%(levelname)s: %(message)s")
        return run_rank(decode_ticket(ticket))


class RayCluster:
    """The one that is there (RAY_ADDRESS, or begun by `ray start`), else one on this machine alone, which ends with
    us. The one that another engine has for itself is left to it: `address="auto"` would find that, too."""

    def __init__(self, ranks: list[Bundle]) -> None:
        import ray

        self._ray = ray
        self._folder = ""  # of our own cluster; "" = it is another's
        self._is_ours_to_leave = not ray.is_initialized()
        if self._is_ours_to_leave:
            self._connect(ranks)

    def _connect(self, ranks: list[Bundle]) -> None:
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        address = address_of_cluster()
        if address:
            try:
                self._ray.init(address=address, **quiet)
            except ConnectionError as error:
                raise ConfigError(f"Ray: {str(error).splitlines()[0]}", "distributed_executor_backend") from error
            return
        _listen_here_alone()
        self._folder = tempfile.mkdtemp(prefix="cadence-ray-")
        has = {name: sum(bundle.get(name, 0) for bundle in ranks) for name in ("CPU", "GPU")}
        self._ray.init(
            num_cpus=int(has["CPU"]),
            num_gpus=int(has["GPU"]),
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            _temp_dir=self._folder,
            **quiet,
        )

    def place(self, ranks: list[Bundle]) -> Any:
        """-> a placement group with a bundle for each rank: all on one machine where one has room, else on few"""
        ray, util = self._ray, self._ray.util
        total = {name: sum(bundle.get(name, 0) for bundle in ranks) for name in ranks[0]}
        fits = any(
            all(node["Resources"].get(name, 0) >= count for name, count in total.items())
            for node in ray.nodes()
            if node["Alive"]
        )
        group = util.placement_group(ranks, strategy="STRICT_PACK" if fits else "PACK")
        if not group.wait(PLACE_S):
            util.remove_placement_group(group)
            has = {name: ray.cluster_resources().get(name, 0) for name in ranks[0]}
            wanted = f"{len(ranks)} times {ranks[0]}; the cluster has {has}"
            raise EngineDeadError(f"Ray found no room for the ranks within {PLACE_S:g} s: {wanted}")
        return group

    def address_for(self, group: Any) -> str:
        """At which actors of the group reach this process: on this machine alone, where all of them are here."""
        placed = set(self._ray.util.placement_group_table(group)["bundles_to_node_id"].values())
        here = self._ray.get_runtime_context().get_node_id()
        return LOOPBACK if placed == {here} else str(self._ray.util.get_node_ip_address())

    def start(self, group: Any, place: int, bundle: Bundle) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        where = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=place)
        made = self._ray.remote(RankActor).options(
            num_cpus=bundle.get("CPU", 0), num_gpus=bundle.get("GPU", 0), scheduling_strategy=where, max_restarts=0
        )
        return made.remote()

    def death_of(self, run: Any) -> str:
        """How an actor's `run` has ended; "" = it goes on"""
        if not self._ray.wait([run], timeout=0)[0]:
            return ""
        try:
            return f"ended with status {self._ray.get(run)}"
        except self._ray.exceptions.RayError as error:
            return f"is gone: {str(error).splitlines()[0]}"

    def end(self, group: Any, actors: list[Any]) -> None:
        for actor in actors:
            with contextlib.suppress(Exception):
                self._ray.kill(actor)
        with contextlib.suppress(Exception):
            self._ray.util.remove_placement_group(group)

    def leave(self) -> None:
        """Ends what we have started."""
        if self._is_ours_to_leave:
            self._ray.shutdown()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


def address_of_cluster() -> str:
    """Of the one that RAY_ADDRESS names, or that `ray start` began on this machine; "" = there is none."""
    from ray._private.services import get_ray_address_from_environment

    return get_ray_address_from_environment(None, None) or ""


def _listen_here_alone() -> None:
    """Ray does so where it forms no clusters, which it decides by a variable and by this constant made of it."""
    env.keep_ray_local()
    from ray._private import ray_constants

    ray_constants.ENABLE_RAY_CLUSTER = False


class RayRanks:
    """A `RankLauncher`."""

    def __init__(self, cluster: RayCluster, group: Any, bundles: list[Bundle]) -> None:
        self._cluster = cluster
        self._group = group
        self._bundles = bundles
        self._actors: list[Any] = []
        self._runs: list[Any] = []

    def start(self, ticket: Ticket) -> None:
        for rank, bundle in enumerate(self._bundles):
            actor = self._cluster.start(self._group, rank, bundle)
            self._actors.append(actor)
            self._runs.append(actor.run.remote(encode_joining(replace(ticket, mesh=ticket.mesh.at(rank)))))

    def death(self) -> str:
        for rank, run in enumerate(self._runs):
            if how := self._cluster.death_of(run):
                return f"the Ray actor of rank {rank} {how}"
        return ""

    def end(self) -> None:
        self._cluster.end(self._group, self._actors)
        self._cluster.leave()


def bundles_of(config: EngineConfig, num_ranks: int) -> list[Bundle]:
    """What each rank asks Ray for."""
    if config.device.kind == "cuda":
        return [{"GPU": 1.0, "CPU": 1.0}] * num_ranks
    return [{"CPU": float(max(1, config.device.cpu_threads // num_ranks))}] * num_ranks


def open_ray(config: EngineConfig, caps: DeviceCaps, processors: Processors) -> OpenExecutor:
    check_processors(processors)
    mesh = Mesh(0, config.parallel.tensor_parallel_size, config.parallel.pipeline_parallel_size)
    bundles = bundles_of(config, mesh.world_size)
    try:
        cluster = RayCluster(bundles)
    except ModuleNotFoundError:
        name = "distributed_executor_backend"
        raise ConfigError(f"{name}=ray needs the package ray: pip install 'cadence-llm[ray]'", name) from None
    try:
        group = cluster.place(bundles)
        address = cluster.address_for(group)
    except BaseException:
        cluster.leave()
        raise
    ticket = Ticket((address, 0), new_secret(), mesh)
    ranks = NetworkRanks(RayRanks(cluster, group, bundles), ticket, config.device.cpu_threads)
    return open_group(ranks, mesh, config, caps)
