"""Files of matrices, good ones in every format, and bad ones made of them: for `prompt_embeds`."""

from __future__ import annotations

import base64
import json
import pickle
import random
import struct
import zipfile
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import numpy as np
import torch


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def numpy_file(values: Any, **options: Any) -> bytes:
    file = BytesIO()
    np.save(file, np.asarray(values), **options)
    return file.getvalue()


def safetensors_file(values: torch.Tensor) -> bytes:
    from safetensors.torch import save

    return save({"prompt_embeds": values.contiguous()}, metadata={"by": "a client"})


def torch_file(values: Any, **options: Any) -> bytes:
    file = BytesIO()
    torch.save(values, file, **options)
    return file.getvalue()


def good_files(values: torch.Tensor) -> dict[str, bytes]:
    """values: [n, H]"""
    wider = torch.cat([values[:1], values, values[:1]])
    return {
        "npy": numpy_file(values),
        "npy of float64": numpy_file(values.double()),
        "npy of big-endian floats": numpy_file(values.numpy().astype(">f4")),
        "safetensors": safetensors_file(values),
        "safetensors of float64": safetensors_file(values.double()),
        "torch": torch_file(values),
        "torch of float64": torch_file(values.double()),
        "torch, a parameter's values": torch_file(values.clone().requires_grad_()),
        "torch, some lines of a storage": torch_file(wider[1:-1]),
    }


def halved_files(values: torch.Tensor) -> dict[str, bytes]:
    """values: [n, H] that are of float16 and bfloat16, too"""
    return {
        "npy of float16": numpy_file(values.half()),
        "safetensors of float16": safetensors_file(values.half()),
        "safetensors of bfloat16": safetensors_file(values.bfloat16()),
        "torch of float16": torch_file(values.half()),
        "torch of bfloat16": torch_file(values.bfloat16()),
    }


class _Runs:
    """Unpickled, it runs code."""

    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit('a pickle was run')",)


def _safetensors(header: Any, body: bytes = bytes(48)) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def _zip(files: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    file = BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return file.getvalue()


def _unzipped(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def strange_files() -> Iterator[tuple[str, bytes]]:
    """Whole, and something else than one matrix of floats."""
    values = torch.arange(12.0).reshape(3, 4)
    good = _unzipped(torch_file(values))
    pickled = good["archive/data.pkl"]
    tensor = {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]}
    yield "nothing", b""
    yield "a text", b"hello, these are words"
    yield "npy of integers", numpy_file(np.arange(12).reshape(3, 4))
    yield "npy of complex numbers", numpy_file(np.ones((3, 4), complex))
    yield "npy of objects", numpy_file(np.array([[_Runs()]], dtype=object), allow_pickle=True)
    yield "npy of a line", numpy_file(np.ones(4))
    yield "npy of a cube", numpy_file(np.ones((2, 3, 4)))
    yield "npy by columns", numpy_file(np.asfortranarray(np.ones((3, 4))))
    yield "npy of no tokens", numpy_file(np.ones((0, 4)))
    yield "npy that says too much", numpy_file(np.ones((3, 4))).replace(b"(3, 4)", b"(9, 4)")
    yield "npy of a huge matrix", numpy_file(np.ones((3, 4))).replace(b"(3, 4), }    ", b"(3, 10**9), }")
    yield "npy of a negative matrix", numpy_file(np.ones((3, 4))).replace(b"(3, 4)", b"(-3,-4)")
    yield "npy with code in its header", numpy_file(np.ones((3, 4))).replace(b"(3, 4), }   ", b"exit(3), }  ")
    yield "npy of version 3", b"\x93NUMPY\x03\x00" + numpy_file(np.ones((3, 4)))[8:]
    yield "safetensors of two", _safetensors({"a": tensor, "b": tensor})
    yield "safetensors of none", _safetensors({})
    yield "safetensors of a list", _safetensors([tensor])
    yield "safetensors of integers", _safetensors({"a": tensor | {"dtype": "I32"}})
    yield "safetensors beyond its end", _safetensors({"a": tensor | {"data_offsets": [0, 96]}})
    yield "safetensors from behind", _safetensors({"a": tensor | {"data_offsets": [48, 0]}})
    yield "safetensors of a huge shape", _safetensors({"a": tensor | {"shape": [2**62, 2**62]}})
    yield "safetensors of a strange shape", _safetensors({"a": tensor | {"shape": [[3], None]}})
    yield "safetensors of an infinite shape", _safetensors({"a": tensor | {"shape": [float("inf"), 4]}})
    yield "safetensors deeper than Python goes", _safetensors(b'{"a":' * 1500 + b"1" + b"}" * 1500)
    yield "safetensors with a header of 2**60", struct.pack("<Q", 2**60) + bytes(64)
    yield "torch of a list", torch_file([values])
    yield "torch of a dict", torch_file({"prompt_embeds": values})
    yield "torch of a parameter", torch_file(torch.nn.Parameter(values))
    yield "torch of integers", torch_file(values.long())
    yield "torch of complex numbers", torch_file(values + 1j)
    yield "torch, sparse", torch_file(values.to_sparse())
    yield "torch, turned", torch_file(values.T)
    yield "torch, one value everywhere", torch_file(torch.ones(1, 1).expand(10**6, 10**6))
    yield "torch of a line", torch_file(values[0])
    yield "torch of a cube", torch_file(values[None])
    yield "torch of before 2020", torch_file(values, _use_new_zipfile_serialization=False)
    yield "a pickle", pickle.dumps(_Runs())
    yield "a pickle of before 1.0", pickle.dumps(_Runs(), protocol=0)
    yield "torch with a pickle that runs", _zip(good | {"archive/data.pkl": pickle.dumps(_Runs(), protocol=2)})
    other = pickled.replace(b"torch._utils\n_rebuild_tensor_v2", b"builtins\nexec")
    yield "torch with another function", _zip(good | {"archive/data.pkl": other})
    other = pickled.replace(b"collections\nOrderedDict", b"os\nabort")
    yield "torch with another dictionary", _zip(good | {"archive/data.pkl": other})
    yield "torch with opcodes before its end", _zip(good | {"archive/data.pkl": pickled[:-1] + b"0."})
    yield "torch with a long pickle", _zip(good | {"archive/data.pkl": pickled[:2] + b"(" * 10**6 + pickled[2:]})
    yield "torch, big-endian", _zip(good | {"archive/byteorder": b"big"})
    yield "torch without its values", _zip({name: data for name, data in good.items() if name != "archive/data/0"})
    yield "torch with fewer values", _zip(good | {"archive/data/0": bytes(44)})
    yield "torch, compressed", _zip(good, zipfile.ZIP_DEFLATED)
    yield "a bomb", _zip(good | {"archive/data/0": bytes(10**8)}, zipfile.ZIP_DEFLATED)
    yield "zip of many files", _zip({f"archive/{number}": b"" for number in range(5000)})
    yield "zip of none", _zip({})


def broken_files(seed: int, count: int) -> Iterator[tuple[str, bytes]]:
    """Cut short, or with bytes changed, in any format."""
    rng = random.Random(seed)
    files = good_files(torch.arange(12.0).reshape(3, 4))
    for number in range(count):
        name, data = rng.choice(list(files.items()))
        if rng.random() < 0.3:
            yield f"{number}: {name}, cut short", data[: rng.randrange(len(data))]
            continue
        changed = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            changed[rng.randrange(len(changed))] = rng.choice((0, 255, rng.randrange(256)))
        yield f"{number}: {name}, changed", bytes(changed)
