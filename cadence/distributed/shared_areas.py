"""All memory that the ranks of one engine share, beside the rings of messages, and which rank has which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cadence.device.base import Device
from cadence.distributed.collectives import CollectiveArea, open_collectives
from cadence.distributed.links import LinkArea, create_links, open_links
from cadence.distributed.mesh import Mesh
from cadence.kernels.cpu.collectives import SharedArea
from cadence.kernels.interface.collectives import ONE_RANK, Collectives
from cadence.kernels.interface.links import StageLinks


@dataclass(frozen=True, slots=True)
class SharedAreas:
    """Ranks of one stage compute together; a rank hands what it has to the one in its place of the next stage."""

    together: Sequence[CollectiveArea]  # by stage; none where a stage is one rank
    links: Sequence[Sequence[LinkArea]]  # by place in a stage: those between stages

    @classmethod
    def create(cls, mesh: Mesh) -> SharedAreas:
        num_together = mesh.pipeline_parallel if mesh.tensor_parallel > 1 else 0
        num_linked = mesh.tensor_parallel if mesh.pipeline_parallel > 1 else 0
        return cls(
            [CollectiveArea.create(mesh.tensor_parallel) for _ in range(num_together)],
            [create_links(mesh.pipeline_parallel) for _ in range(num_linked)],
        )

    def all(self) -> list[CollectiveArea | LinkArea]:
        return [*self.together, *(area for areas in self.links for area in areas)]

    def fds(self, mesh: Mesh) -> list[int]:
        """What a rank is given, for `attach_areas`."""
        own = self.together[mesh.pp_rank :][:1]
        linked = self.links[mesh.tp_rank] if self.links else []
        return [area.fd for area in (*own, *linked)]


@dataclass(frozen=True, slots=True)
class RankAreas:
    """What one rank computes with others in: memory that they share, or memory of its own with connections to them."""

    together: Sequence[SharedArea] = ()  # that of its stage, where it has others
    links: Sequence[SharedArea] = ()  # those between stages, as `create_links` orders them, where there are several


def attach_areas(fds: Sequence[int], mesh: Mesh) -> RankAreas:
    """By a rank, of what it was given."""
    num_together = int(mesh.tensor_parallel > 1)
    return RankAreas(
        [CollectiveArea.attach(fd) for fd in fds[:num_together]], [LinkArea.attach(fd) for fd in fds[num_together:]]
    )


def open_shared(areas: RankAreas, device: Device, mesh: Mesh, ordered: bool) -> tuple[Collectives, StageLinks]:
    """ordered: sums are added in the order of ranks, whatever their size"""
    ranks = open_collectives(areas.together[0], device, mesh, ordered) if areas.together else ONE_RANK
    return ranks, open_links(areas.links, device, mesh)
