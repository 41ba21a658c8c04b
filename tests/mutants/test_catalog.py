"""The faults of the catalog can still be put into the code: `make mutants` then shows that tests notice them."""

from __future__ import annotations

import pytest

from tests.mutants.catalog import MUTANTS, Mutant
from tests.mutants.run import ROOT


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_fault_has_its_place(mutant: Mutant) -> None:
    assert (ROOT / "cadence" / mutant.file).read_text(encoding="utf-8").count(mutant.old) == 1
    assert mutant.old != mutant.new
    assert all((ROOT / "tests" / each).exists() for each in mutant.tests)


def test_faults_differ() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 20
