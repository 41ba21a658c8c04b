"""Words between Python and C: one table, which both sides hold to by name."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path

import pytest

from cadence.config.env import compiler
from cadence.device.calls import WORDS, Calls, Function
from cadence.kernels.cpu.packed.weights import Kind
from cadence.kernels.cpu.runtime import library, table
from cadence.kernels.cpu.runtime.library import CpuLibrary
from cadence.kernels.cpu.runtime.table import TABLE, TableError, read_table

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
}  # hold structs: C has no such names
ADD = {"out": 0, "x": 0, "y": 0, "rows": 0, "width": 8, "dtype": 0}  # of no rows: nothing is read


def test_the_compiler_finds_every_word_where_python_puts_it(tmp_path: Path) -> None:
    lines = ["#include <stddef.h>", f'#include "{HEADER}"']
    for name, words in TABLE.commands.items():
        lines.append(f'_Static_assert(sizeof(struct {name}) == {8 * len(words)}, "{name}");')
        if name not in NESTED:
            offsets = [f"offsetof(struct {name}, {word}) == {8 * index}" for index, word in enumerate(words)]
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
def test_a_wrong_word_is_named(words: dict[str, int], told: str) -> None:
    with pytest.raises(TypeError, match=rf"^add\(\) .*{told}"):
        CpuLibrary(Calls(1)).add(**words)


def test_words_go_down_in_the_order_of_the_header() -> None:
    class Heard(Calls):
        def call(self, function: Function, *words: int) -> None:
            heard.append(words)

    heard: list[tuple[int, ...]] = []
    commands = CpuLibrary(Heard(1))
    for name, words in TABLE.commands.items():
        numbers = {word: number for number, word in enumerate(words)}
        getattr(commands, name)(**dict(reversed(numbers.items())))
        assert heard.pop() == tuple(range(len(words))), name


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
    monkeypatch.setattr(library, "TABLE", read_table(TEXT.replace("COMMAND_WORDS 24", "COMMAND_WORDS 25")))
    with pytest.raises(TableError, match=f"25, a call has {WORDS}"):
        CpuLibrary(Calls(1))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("int64_t rows, width, dtype;", "int32_t rows;", "int32_t rows is not one word"),
        ("int64_t rows, width, dtype;", "int64_t rows, rows;", "struct add has no field, or one twice"),
        ("int64_t rows, width, dtype;", "int64_t rows[2];", r"rows\[2\] is not one word"),
        ("int64_t rows, width, dtype;", "rows;", "'rows' is no field"),
        ("struct add {", "struct scale {", "struct 'scale' has no name, or that of another"),
        ("COMMAND_WORDS 24", "COMMAND_WORDS 23", "more than 23 words: attention"),
        ("COMMAND_WORDS", "COMMANDS", "COMMAND_WORDS is missing"),
        ("F32, BF16", "F32, BF16 = 7", "without numbers"),
    ],
)
def test_what_is_no_table_is_refused(old: str, new: str, told: str) -> None:
    assert old in TEXT
    with pytest.raises(TableError, match=told):
        read_table(TEXT.replace(old, new))


def test_numbers_that_differ_are_refused() -> None:
    numbers = {f"P_{kind.name}": int(kind) for kind in Kind}
    TABLE.check("kind", numbers)
    for wrong in ({**numbers, "P_F16": 11}, {**numbers, "P_NEW": 11}, {"P_F32": 0}):
        with pytest.raises(TableError, match="enum kind"):
            TABLE.check("kind", wrong)
