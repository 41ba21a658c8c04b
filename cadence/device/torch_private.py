"""Everything of torch that is not documented and is used here, read off the versions below; a test holds it to them."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode

HOLDS_FOR = ("2.11", "2.13")


class UncompiledDispatchMode(TorchDispatchMode):
    """Sees every operation of torch while it is entered."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here is compiled: to be told so, torch would import its compiler, 100 MB and seconds of it."""
        return False


def clear_matmul_workspaces() -> None:
    """What the library of products keeps on a GPU for every stream it ever worked on, 32 MiB each."""
    torch._C._cuda_clearCublasWorkspaces()
