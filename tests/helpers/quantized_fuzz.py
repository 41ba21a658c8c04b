"""Loads quantised checkpoints that lie, and runs what loads. Run as a program: a crash is then its exit status.

    python -m tests.helpers.quantized_fuzz FOLDER EXAMPLES

The folder's weights are damaged in many ways, in place; the last one tried is in FOLDER/tried.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.helpers.gguf_fuzz import Edit, damaged, try_out

_SIZES = (0, 1, 2, 15, 16, 31, 32, 64, 127, 128, 129, 256, 2**20, 2**31 - 1, 2**32, 2**62)
_TYPES = ("I32", "I8", "U8", "I64", "F16", "BF16", "F32", "F8_E4M3", "F8_E5M2", "BOOL", "F4")


def header_lies(names: list[str]) -> st.SearchStrategy[tuple[str, str, object]]:
    """(tensor, field of its header, what it becomes); a shape may lose or gain a dimension."""
    shapes = st.lists(st.sampled_from(_SIZES), min_size=0, max_size=3)
    lie = st.tuples(st.just("dtype"), st.sampled_from(_TYPES)) | st.tuples(st.just("shape"), shapes)
    lie |= st.tuples(st.just("gone"), st.none()) | st.tuples(st.just("transposed"), st.none())
    return st.tuples(st.sampled_from(names), lie).map(lambda both: (both[0], *both[1]))


def with_lie(raw: bytes, lie: tuple[str, str, object]) -> bytes:
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    name, field, value = lie
    if field == "gone":
        header["unknown.bias"] = header.pop(name)
    elif field == "transposed":
        header[name]["shape"] = header[name]["shape"][::-1]
    else:
        header[name][field] = value
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + raw[8 + size :]


def main() -> None:
    folder, examples = Path(sys.argv[1]), int(sys.argv[2])
    file = folder / "model.safetensors"
    raw = file.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = {name: entry for name, entry in json.loads(raw[8 : 8 + size]).items() if name != "__metadata__"}
    quantised = [name for name in header if "_proj." in name]
    # Bytes of the small tensors among them: scales, zero points, groups, states.
    small = [header[name]["data_offsets"] for name in quantised if header[name]["data_offsets"][1] % 2**32 > 0]
    small = sorted(small, key=lambda ends: ends[1] - ends[0])[: 2 * len(small) // 3]
    inside = st.sampled_from(small).flatmap(lambda ends: st.integers(8 + size + ends[0], 8 + size + ends[1] - 1))
    edits = st.lists(st.tuples(inside, st.just(1), st.integers(0, 255)), min_size=1, max_size=8)
    outcomes = [0, 0]
    assert try_out(folder)

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(header_lies(quantised) | edits)
    def fuzz(lie: tuple[str, str, object] | list[Edit]) -> None:
        (folder / "tried").write_text(repr(lie))
        file.unlink()  # the last one may still be mapped
        file.write_bytes(damaged(raw, lie) if isinstance(lie, list) else with_lie(raw, lie))
        outcomes[try_out(folder)] += 1

    fuzz()
    print(f"{outcomes[0]} refused, {outcomes[1]} loaded")


if __name__ == "__main__":
    main()
