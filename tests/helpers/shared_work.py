"""Which tests go to one process where several run side by side: those of a file; of the matrix, a part of its engines.

Every process that runs engines of the matrix also runs the plain ones that they are held to: hence a few parts for each
family, by what they are held to, and not one for each engine.
"""

from __future__ import annotations

import re

from xdist.scheduler import LoadFileScheduling

_MATRIX = ("tests/matrix/test_matrix.py", "tests/matrix/test_truly_on.py")
_CACHE = re.compile(r"\w+ KV cache")


class SharedWorkScheduling(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        name, bracket, parameters = nodeid.partition("[")
        if not (bracket and name.startswith(_MATRIX)):
            return super()._split_scope(nodeid)
        family = parameters.partition("-")[0]
        caches = _CACHE.findall(parameters)
        beside = ["adapters"] if "adapters" in nodeid else []
        return " ".join(["tests/matrix", family.rstrip("]"), *beside, *caches])
