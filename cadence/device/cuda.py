"""NVIDIA GPUs. The only file that names `torch.cuda`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Generic
from weakref import WeakSet

import numpy as np
import torch

from cadence.core.errors import ConfigError
from cadence.device.base import DeviceCaps, Graph, Output, Transfer
from cadence.device.driver import Driver
from cadence.device.host_calls import HostCalls
from cadence.device.pages import ALLOCATE, FREE, PagedRegions, Pages
from cadence.device.regions import LARGE, NoRegions, Regions
from cadence.device.torch_private import clear_matmul_workspaces, held_allocator


class CudaTransfer:
    """Copies on the side stream into pinned memory; `wait` blocks the host alone, never the device."""

    def __init__(self, pinned: list[torch.Tensor], done: torch.cuda.Event) -> None:
        self._pinned = pinned
        self._done = done

    def wait(self) -> list[np.ndarray]:
        self._done.synchronize()
        return [tensor.numpy() for tensor in self._pinned]


class CudaGraph(Generic[Output]):
    def __init__(self, graph: torch.cuda.CUDAGraph, output: Output) -> None:
        self._graph = graph
        self._output = output

    def replay(self, work: Callable[[], Output]) -> Output:
        self._graph.replay()
        return self._output


@functools.cache
def _plugged_in() -> tuple[Pages, torch.cuda.memory.CUDAPluggableAllocator]:
    """Torch keeps pointers to it, and never says when they are no longer needed: it lives as long as the process."""
    pages = Pages()
    return pages, torch.cuda.memory.CUDAPluggableAllocator(pages.path, ALLOCATE, FREE)


class CudaRegions(PagedRegions):
    """Each time that a region is entered it gets a pool of torch's, which lives as long as this object: none of their
    memory is ever handed out again."""

    def __init__(self, device: torch.device) -> None:
        pages, self._allocator = _plugged_in()
        super().__init__(pages)
        self._device = device
        self._pools: list[torch.cuda.MemPool] = []
        self.idle_bytes = 0  # that the caching allocator counts as kept, and no one can have

    @contextmanager
    def region(self, tag: str) -> Generator[None, None, None]:
        pool = torch.cuda.MemPool(held_allocator(self._allocator))
        self._pools.append(pool)
        self.pages.tag(self.number(tag))
        with torch.cuda.use_mem_pool(pool, self._device):
            yield
        torch.cuda.synchronize(self._device)  # what was freed is free
        self._give_up_rest(pool, tag)

    def _give_up_rest(self, pool: torch.cuda.MemPool, tag: str) -> None:
        """Chunks of which nothing is in use."""
        chunks = {chunk.address: chunk for chunk in self.pages.chunks(self.number(tag))}
        for segment in pool.snapshot():
            self.idle_bytes += segment["total_size"] - segment["allocated_size"]
            if not segment["active_size"] and segment["address"] in chunks:
                self.pages.unmap(chunks[segment["address"]], for_good=True)

    def trim(self) -> None:
        """But for the workspaces of matrix products, which captured graphs may use."""
        torch.cuda.empty_cache()


class CudaDevice:
    queues_work = True

    def __init__(self, index: int = 0, num_sharers: int = 1) -> None:
        """num_sharers: processes of one engine that use it, this one among them"""
        self.caps = cuda_caps(index)
        self.num_sharers = num_sharers
        self.torch_device = torch.device("cuda", index)
        torch.cuda.set_device(self.torch_device)
        self._copy_stream = torch.cuda.Stream(self.torch_device)
        self._capture_stream = torch.cuda.Stream(self.torch_device)
        self._graph_pool = torch.cuda.graph_pool_handle()  # one for all graphs: they never run at the same time
        self._graphs: WeakSet[CudaGraph[Any]] = WeakSet()
        self.regions: Regions = NoRegions()
        self._idle_bytes: Callable[[], int] = int

    def allow_sleep(self) -> None:
        regions = CudaRegions(self.torch_device)
        self.regions, self._idle_bytes = regions, lambda: regions.idle_bytes

    @property
    def stream(self) -> int:
        """That work is queued in now, as the driver knows it."""
        return int(torch.cuda.current_stream(self.torch_device).cuda_stream)

    @property
    def bus_id(self) -> str:
        """Tells the GPUs of one machine apart, whatever numbers processes know them by."""
        found = torch.cuda.get_device_properties(self.torch_device)
        return f"{found.pci_domain_id}:{found.pci_bus_id}:{found.pci_device_id}:{found.uuid}"

    def host_calls(self) -> HostCalls:
        driver = Driver()
        return HostCalls(lambda function, words: driver.launch_on_host(self.stream, function, words), self._pinned)

    def _pinned(self, num_bytes: int) -> torch.Tensor:
        """Memory of the host that stays where it is, known to the driver but not to torch's allocator, which would
        note down every use of it, also while a graph is captured."""
        made = torch.empty(num_bytes, dtype=torch.uint8)
        status = torch.cuda.cudart().cudaHostRegister(made.data_ptr(), num_bytes, 0)
        torch.cuda.check_error(int(status))
        return made

    def upload(self, array_np: np.ndarray) -> torch.Tensor:
        # A pinned temporary per upload: the caching host allocator hands its memory out again only when the event it
        # records after the copy has fired, so neither the caller's array nor the temporary is overwritten early.
        dtype = torch.from_numpy(np.empty(0, dtype=array_np.dtype)).dtype
        pinned = torch.empty(array_np.shape, dtype=dtype, pin_memory=True)
        pinned.numpy()[...] = array_np
        return pinned.to(self.torch_device, non_blocking=True)

    def download(self, tensors: Sequence[torch.Tensor]) -> Transfer:
        # Snapshots are taken in the order of the main stream, so later in-place writes there do not show.
        snapshots = [tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in tensors]
        pinned = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in snapshots]
        self._copy_stream.wait_stream(torch.cuda.current_stream(self.torch_device))
        with torch.cuda.stream(self._copy_stream):
            for target, snapshot in zip(pinned, snapshots, strict=True):
                target.copy_(snapshot, non_blocking=True)
                snapshot.record_stream(self._copy_stream)  # its memory is not reused before the copy is done
        return CudaTransfer(pinned, self._copy_stream.record_event())

    def record(self, work: Callable[[], Output]) -> tuple[Graph[Output], Output]:
        done = work()  # compiles what is not yet
        if not self._graphs:  # torch ends a pool with its last graph
            self._graph_pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        self._capture_stream.wait_stream(torch.cuda.current_stream(self.torch_device))
        with torch.cuda.stream(self._capture_stream):
            graph.capture_begin(pool=self._graph_pool, capture_error_mode="thread_local")
            try:
                output = work()  # only noted down
            finally:
                graph.capture_end()
        captured = CudaGraph(graph, output)
        self._graphs.add(captured)
        return captured, done

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        with self.regions.region(LARGE):
            return torch.zeros(shape, dtype=dtype, device=self.torch_device)

    def torch_on(self, count: int) -> AbstractContextManager[None]:
        return nullcontext()

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch_device)

    def trim_memory(self) -> None:
        """Also the workspaces of matrix products."""
        clear_matmul_workspaces()
        torch.cuda.empty_cache()

    def free_memory(self) -> int:
        free, _ = torch.cuda.mem_get_info(self.torch_device)
        stats = torch.cuda.memory_stats(self.torch_device)
        # What the caching allocator keeps but no tensor holds can be allocated too, unless it belongs to a region.
        kept = stats.get("reserved_bytes.all.current", 0) - stats.get("allocated_bytes.all.current", 0)
        return free + kept - self._idle_bytes()

    def peak_memory(self) -> int:
        return torch.cuda.max_memory_allocated(self.torch_device)

    def reset_peak_memory(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.torch_device)


def cuda_available() -> bool:
    return torch.cuda.is_available()


def cuda_caps(index: int = 0) -> DeviceCaps:
    if not torch.cuda.is_available():
        raise ConfigError("device 'cuda' was asked for, but torch sees no CUDA GPU", field="device")
    properties = torch.cuda.get_device_properties(index)
    major, minor = properties.major, properties.minor
    return DeviceCaps(
        name=properties.name,
        kind="cuda",
        total_memory=properties.total_memory,
        native_bf16=major >= 8,
        native_fp16=(major, minor) >= (7, 0),
        count=torch.cuda.device_count(),
    )
