"""Which tests go to one process where several run side by side: those of a file, and all that read one matrix."""

from __future__ import annotations

import re

from xdist.scheduler import LoadFileScheduling

from tests.matrix.families import EVERY_FAMILY

_MATRIX = "tests/matrix/"


class SharedWorkScheduling(LoadFileScheduling):
    """The engines of a matrix are run once for all its tests, in whichever files they are."""

    def _split_scope(self, nodeid: str) -> str:
        if not nodeid.startswith(_MATRIX):
            return super()._split_scope(nodeid)
        named = set(re.split(r"[\[\]-]", nodeid)) & {*EVERY_FAMILY}
        return _MATRIX + (named.pop() if named else EVERY_FAMILY[0])
