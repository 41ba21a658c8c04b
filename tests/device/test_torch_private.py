"""What `torch_private.py` takes from torch is there, in the versions that it names."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch.utils import _python_dispatch

from cadence.device import torch_private
from cadence.device.calls import Watch

pytestmark = pytest.mark.device


def test_the_versions_it_holds_for() -> None:
    """With another version: read `torch_private.py` against it, then add it to HOLDS_FOR."""
    assert torch.__version__.startswith(tuple(f"{version}." for version in torch_private.HOLDS_FOR))


@pytest.mark.parametrize(
    ("owner", "name", "user"),
    [
        (torch, "_scaled_mm", torch_private.scaled_matmul),
        (torch.ops.aten, "_scaled_dot_product_cudnn_attention", torch_private.cudnn_attention),
    ],
    ids=["scaled_matmul", "cudnn_attention"],
)
def test_torch_has_what_is_called(owner: object, name: str, user: Callable[..., object]) -> None:
    assert name in inspect.getsource(user)
    assert hasattr(owner, name), f"torch {torch.__version__} lacks {name}, which {user.__name__} calls"


def test_the_arguments_of_attention_are_in_the_order_of_torch() -> None:
    arguments = torch.ops.aten._scaled_dot_product_cudnn_attention.default._schema.arguments
    names = ("query", "key", "value", "attn_bias", "compute_log_sumexp", "dropout_p", "is_causal", "return_debug_mask")
    assert tuple(argument.name for argument in arguments) == (*names, "scale")


def test_a_dispatch_mode_is_asked_whether_it_skips_the_compiler() -> None:
    assert "_should_skip_dynamo" in inspect.getsource(_python_dispatch.TorchDispatchMode.__init_subclass__)
    assert Watch._should_skip_dynamo() is False


def test_a_recording_does_not_import_the_compiler() -> None:
    code = (
        "import sys, torch\nfrom cadence.device.calls import Watch\nwatch = Watch()\n"
        "with watch:\n    torch.ones(2) + 1\n"
        "assert watch.obstacle == 'ones', watch.obstacle\nassert 'torch._dynamo' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.gpu
@pytest.mark.alone
def test_workspaces_of_products_are_given_back() -> None:
    x = torch.ones(256, 256, device="cuda")
    torch.mm(x, x)
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    torch_private.clear_matmul_workspaces()
    assert torch.cuda.memory_allocated() <= held
