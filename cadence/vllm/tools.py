"""Small functions that scripts for vLLM call beside the engine."""

from __future__ import annotations

import gc
import random
import socket
from pathlib import Path
from typing import Any

from cadence.config.reference import find_tokenizer
from cadence.entrypoints.conversation import read_template
from cadence.text.load import tokenizer_for
from cadence.text.tokenizer import Tokenizer


class Platform:
    """Where engines run on this machine."""

    @property
    def device_type(self) -> str:
        from cadence.engine.build import device_caps

        return device_caps("auto").kind

    def is_cuda(self) -> bool:
        return self.device_type == "cuda"

    def is_cuda_alike(self) -> bool:
        return self.is_cuda()

    def is_cpu(self) -> bool:
        return self.device_type == "cpu"

    def is_rocm(self) -> bool:
        return False

    def is_xpu(self) -> bool:
        return False

    def is_tpu(self) -> bool:
        return False

    def seed_everything(self, seed: int | None = None) -> None:
        set_random_seed(seed)


current_platform = Platform()


def get_tokenizer(tokenizer_name: str, *, revision: str | None = None, **_: object) -> Tokenizer:
    return tokenizer_for(find_tokenizer(str(tokenizer_name), revision=revision or ""))


def load_chat_template(chat_template: Path | str | None, is_literal: bool = False) -> str | None:
    return str(chat_template) if is_literal or chat_template is None else read_template(str(chat_template))


def cleanup_dist_env_and_memory(shutdown_ray: bool = False) -> None:
    """An engine gives all back when its last reference goes: only a cycle could hold one."""
    gc.collect()


def nothing_to_destroy(*_: Any) -> None:
    """There is one process and one device, and no group of them to take apart."""


def set_random_seed(seed: int | None) -> None:
    if seed is None:
        return
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def get_open_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def get_ip() -> str:
    """This machine's address as others see it, without sending anything."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def print_embeddings(embeds: list[float], prefix: str = "Embeddings") -> None:
    """The first numbers of an embedding, and how many there are."""
    shown = ", ".join(map(str, embeds[:4]))
    print(f"{prefix}: [{shown}{', ...' if len(embeds) > 4 else ''}] (size={len(embeds)})")


def set_ulimit(target: int = 65535) -> None:
    """Raises the limit of open files, as far as this user may."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < min(target, hard):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(target, hard), hard))
