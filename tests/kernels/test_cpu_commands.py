"""Words between Python and C: one table, which both sides hold to by name."""

from __future__ import annotations

import dataclasses
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from cadence.config.env import compiler
from cadence.device.calls import WORDS, Calls, Function
from cadence.kernels.cpu.packed.weights import Kind
from cadence.kernels.cpu.runtime import library, table
from cadence.kernels.cpu.runtime.dtypes import CACHE_DTYPES, DTYPES
from cadence.kernels.cpu.runtime.library import NO_TENSOR, CpuLibrary, with_words
from cadence.kernels.cpu.runtime.table import TABLE, CommandWord, TableError, WordKind, read_table
from cadence.kernels.interface.ops import Activation

pytestmark = pytest.mark.device

HEADER = Path(table.__file__).with_name("commands.h")
TEXT = HEADER.read_text()
NESTED = {
    "packed_rows",
    "rows_gather",
    "rows_slots",
    "rows_commit",
    "rows_propose",
    "rows_turn",
    "rows_drafts",
    "suffix_propose",
    "rows_find_state_runs",
    "state_conv",
    "state_scan",
    "state_head_scan",
    "state_delta",
}  # hold structs: C has no such names
NO_TENSORS = dict.fromkeys(("out", "x", "y"), NO_TENSOR)
ADD: dict[str, Any] = {**NO_TENSORS, "rows": 0, "width": 8, "dtype": torch.float32}  # of no rows: nothing is read
MEMORY = torch.zeros(WORDS)


def test_the_compiler_finds_every_word_where_python_puts_it(tmp_path: Path) -> None:
    lines = ["#include <stddef.h>", f'#include "{HEADER}"']
    for name, words in TABLE.commands.items():
        lines.append(f'_Static_assert(sizeof(struct {name}) == {8 * len(words)}, "{name}");')
        if name not in NESTED:
            offsets = [f"offsetof(struct {name}, {word.name}) == {8 * index}" for index, word in enumerate(words)]
            lines += [f'_Static_assert({offset}, "{name}");' for offset in offsets]
    numbers = [pair for enum in TABLE.enums.values() for pair in enum.items()]
    lines += [f'_Static_assert({name} == {number}, "{name}");' for name, number in numbers]
    source = tmp_path / "words.c"
    source.write_text("\n".join(lines) + "\n")
    done = subprocess.run([*compiler(), "-std=gnu11", "-fsyntax-only", str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(lines) > 150  # they were found


def test_words_go_by_name_in_any_order() -> None:
    commands = CpuLibrary(Calls(1))
    commands.add(**ADD)
    commands.add(**dict(reversed(ADD.items())))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({key: 0 for key in ADD if key != "y"}, "missing 1 required keyword-only argument: 'y'"),
        ({**ADD, "z": 0}, "unexpected keyword argument 'z'"),
        ({**{key: 0 for key in ADD if key != "width"}, "widht": 0}, "unexpected keyword argument 'widht'"),
    ],
)
def test_a_wrong_word_is_named(words: dict[str, Any], told: str) -> None:
    with pytest.raises(TypeError, match=rf"^add\(\) .*{told}"):
        CpuLibrary(Calls(1)).add(**words)


def _passed(word: CommandWord, place: int) -> tuple[object, int]:
    """Something that may be passed for a word, and the bits that go down; at every place others."""
    memory = MEMORY[place:]
    return {
        WordKind.TENSOR: (memory, memory.data_ptr()),
        WordKind.FLOAT: (float(place), struct.unpack("<i", struct.pack("<f", place))[0]),
        WordKind.DTYPE: (torch.bfloat16, DTYPES[torch.bfloat16]),
        WordKind.CACHE_DTYPE: (torch.int8, CACHE_DTYPES[torch.int8]),
    }.get(word.kind, (place, place))


def test_words_go_down_in_the_order_of_the_header() -> None:
    class Received(Calls):
        def call(self, function: Function, *words: int) -> None:
            received.append(words)

    received: list[tuple[int, ...]] = []
    commands = CpuLibrary(Received(1))
    for name, words in TABLE.commands.items():
        given = {word.name: _passed(word, place) for place, word in enumerate(words)}
        getattr(commands, name)(**{word: passed for word, (passed, _) in reversed(given.items())})
        assert received.pop() == tuple(bits for _, bits in given.values()), name


def test_what_is_passed_for_a_word_follows_from_the_header() -> None:
    names: dict[WordKind, set[str]] = {kind: set() for kind in WordKind}
    for words in TABLE.commands.values():
        for word in words:
            names[word.kind].add(word.name)
    assert names[WordKind.ADDRESS] == {"segments", "experts", "shared", "link"}
    assert names[WordKind.CACHE_DTYPE] == {"cache_dtype"}
    types = {"dtype", "x_dtype", "y_dtype", "out_dtype", "weight_dtype", "table_dtype", "bias_dtype"}
    assert names[WordKind.DTYPE] == types
    numbers = {"k_scale", "v_scale", "scale", "softcap", "eps", "factor", "cap", "limit_low", "limit_high"}
    assert names[WordKind.FLOAT] == numbers
    assert {"x", "residual", "data", "ids"} <= names[WordKind.TENSOR]


def test_a_tensor_that_is_missing_goes_down_as_null() -> None:
    assert with_words("add", lambda *words: words)(**ADD) == (0, 0, 0, 0, 8, DTYPES[torch.float32])


def test_a_type_that_only_caches_have_is_refused_elsewhere() -> None:
    with pytest.raises(KeyError):
        with_words("add", lambda *words: words)(**{**ADD, "dtype": torch.int8})


def test_a_missing_row_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    rest = {name: words for name, words in TABLE.commands.items() if name != "rope"}
    monkeypatch.setattr(library, "TABLE", dataclasses.replace(TABLE, commands=rest))
    with pytest.raises(AttributeError, match="no command 'rope'"):
        CpuLibrary(Calls(1)).rope()


def test_a_row_without_its_function_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    more = read_table(TEXT.replace("struct add {", "struct subtract {"))
    monkeypatch.setattr(library, "TABLE", more)
    with pytest.raises(AttributeError, match="call_subtract"):
        CpuLibrary(Calls(1))


def test_both_sides_agree_on_how_long_a_command_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "TABLE", read_table(TEXT.replace("COMMAND_WORDS 29", "COMMAND_WORDS 30")))
    with pytest.raises(TableError, match=f"30, a call has {WORDS}"):
        CpuLibrary(Calls(1))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("int64_t rows, width, dtype;", "int32_t rows;", "int32_t rows is not one word"),
        ("int64_t rows, width, dtype;", "int64_t rows, rows;", "struct add has no field, or one twice"),
        ("int64_t rows, width, dtype;", "int64_t rows[2];", r"rows\[2\] is not one word"),
        ("int64_t rows, width, dtype;", "rows;", "'rows' is no field"),
        ("struct add {", "struct scale {", "struct 'scale' has no name, or that of another"),
        ("COMMAND_WORDS 29", "COMMAND_WORDS 28", "more than 28 words: state_head_scan"),
        ("COMMAND_WORDS", "COMMANDS", "COMMAND_WORDS is missing"),
        ("F32, BF16", "F32, BF16 = 7", "without numbers"),
    ],
)
def test_what_is_no_table_is_refused(old: str, new: str, told: str) -> None:
    assert old in TEXT
    with pytest.raises(TableError, match=told):
        read_table(TEXT.replace(old, new))


def test_numbers_that_differ_are_refused() -> None:
    numbers = {kind.name: int(kind) for kind in Activation}
    TABLE.check("activation", numbers)
    for wrong in ({**numbers, "SILU": 7}, {**numbers, "NEW": 4}, {"RELU": 0}):
        with pytest.raises(TableError, match="enum activation"):
            TABLE.check("activation", wrong)


def test_kinds_of_packed_weights_are_those_of_the_header() -> None:
    assert {f"P_{kind.name}": int(kind) for kind in Kind} == TABLE.enums["kind"]
    assert Kind["Q4_1"] is Kind(4) and Kind.F32 == 0
