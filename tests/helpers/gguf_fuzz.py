"""Loads GGUF files that lie, and runs what loads. Run as a program: a crash is then its exit status.

    python -m tests.helpers.gguf_fuzz FILE EXAMPLES

FILE is damaged in many ways; the last one tried is in FILE.tried.
"""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from cadence import LLM, SamplingParams
from cadence.core.errors import CadenceError
from cadence.gguf.file import GGUFFile

Edit = tuple[int, int, int]  # where, how many bytes, their new value; no bytes = the file ends there

_SMALL = [*range(16), 31, 32, 33, 64, 128, 192, 255, 256, 257, 320, 512, 2**15]
_LARGE = [2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1]
_OPTIONS = {"max_model_len": 64, "kv_cache_memory_bytes": 1 << 20, "enforce_eager": True}


def fields(path: Path, raw: bytes) -> list[tuple[int, int]]:
    """(where, how many bytes) of the numbers that say how the model and its tensors look."""
    file, found = GGUFFile(path), []
    for key, value in file.metadata.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            found.append((raw.index(key.encode()) + len(key) + 4, 4))
    for tensor in file.tensors.values():
        at = raw.index(tensor.name.encode()) + len(tensor.name)
        rank = len(tensor.shape)
        found += [(at, 4), *((at + 4 + 8 * i, 8) for i in range(rank)), (at + 4 + 8 * rank, 4), (at + 8 + 8 * rank, 8)]
    return found


def damages(numbers: list[tuple[int, int]], header: int, size: int) -> st.SearchStrategy[list[Edit]]:
    def number(field: tuple[int, int]) -> st.SearchStrategy[Edit]:
        return st.tuples(st.just(field[0]), st.just(field[1]), st.sampled_from(_SMALL) | st.sampled_from(_LARGE))

    one = (
        st.sampled_from(numbers).flatmap(number)
        | st.tuples(st.integers(0, header - 1), st.just(1), st.integers(0, 255))
        | st.tuples(st.integers(header, size - 1), st.just(1), st.integers(0, 255))
    )
    cut = st.tuples(st.integers(0, size - 1), st.just(0), st.just(0))
    return st.lists(one, min_size=1, max_size=3) | st.lists(cut, min_size=1, max_size=1)


def damaged(raw: bytes, edits: list[Edit]) -> bytes:
    out = bytearray(raw)
    for where, width, value in edits:
        out[where : where + width or len(out)] = (value % 256**width).to_bytes(width, "little")
    return bytes(out)


def try_out(path: Path) -> bool:
    """Whether it loaded. What is refused is refused by an error of ours."""
    try:
        llm = LLM(str(path), **_OPTIONS, **({"quantization": "gguf"} if path.suffix == ".gguf" else {}))
        llm.generate([{"prompt_token_ids": [1, 2, 3]}], SamplingParams(max_tokens=2, detokenize=False), use_tqdm=False)
    except CadenceError:
        return False
    return True


def main() -> None:
    good, examples = Path(sys.argv[1]), int(sys.argv[2])
    raw, header = good.read_bytes(), min(tensor.offset for tensor in GGUFFile(good).tensors.values())
    bad, tried = good.with_name("bad.gguf"), good.with_name(good.name + ".tried")
    outcomes = [0, 0]
    assert try_out(good)

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(damages(fields(good, raw), header, len(raw)))
    def fuzz(edits: list[Edit]) -> None:
        tried.write_text(repr(edits))
        bad.write_bytes(damaged(raw, edits))
        outcomes[try_out(bad)] += 1

    fuzz()
    print(f"{outcomes[0]} refused, {outcomes[1]} loaded")


if __name__ == "__main__":
    main()
