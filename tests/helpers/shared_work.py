"""Which tests go to which process where several run side by side.

A unit of work is a file; of the matrix, a part of its engines. Every process that runs engines of the matrix also runs
the plain ones that they are held to: hence a few parts for each family, by what they are held to, and not one for each
engine.

`-n auto` is up to two processes more than cores (`pytest_xdist_auto_num_workers` of `tests/conftest.py`). The last ones
have the files of MOSTLY_WAITING first, whose seconds are silences, deadlines and drains: a core of their own would be
idle for most of them. Then they are as the others, which wait for a fifth of their time, too. Where there is a core for
each process, all are alike.

Files of LONGEST come first: one that began among the last would be waited for by processes with nothing left to do.
"""

from __future__ import annotations

import os
import re
from typing import Any

from xdist.scheduler import LoadFileScheduling

MOST_SPARE = 2  # processes for MOSTLY_WAITING
_MATRIX = ("tests/matrix/test_matrix.py", "tests/matrix/test_truly_on.py")
_CACHE = re.compile(r"\w+ KV cache")
MOSTLY_WAITING = (  # the longest first; those with a browser one after another, for they share one
    "tests/engine/test_supervisor.py",
    "tests/server/test_webui_browser.py",
    "tests/server/test_webui_chat.py",
    "tests/server/test_webui_markdown.py",
    "tests/server/test_webui_real.py",
    "tests/server/test_webui_embed.py",
    "tests/server/test_docs_browser.py",
    "tests/server/test_slow_readers.py",
    "tests/server/test_resumed_answers.py",
    "tests/distributed/test_faults.py",
    "tests/distributed/test_ray.py",
    "tests/engine/test_sleep_process.py",
    "tests/distributed/test_api_processes.py",
    "tests/server/test_fault_injector.py",
    "tests/distributed/test_shared_responses.py",
    "tests/server/test_structured_real.py",
    "tests/distributed/test_data_parallel.py",
    "tests/server/test_logs.py",
    "tests/server/test_metrics.py",
    "tests/server/test_loop_watchdog.py",
    "tests/distributed/test_joining.py",
    "tests/server/test_limits.py",
)
LONGEST = (  # of those that compute: ten seconds and more, the longest first
    "tests/docs/test_pages_run.py",
    "tests/hostile/test_hostile.py",
    "tests/structured/test_service.py",
    "tests/entrypoints/test_memory_comes_back.py",
    "tests/entrypoints/test_update_weights.py",
    "tests/docs/test_examples.py",
    "tests/server/test_several_models.py",
    "tests/server/test_faults.py",
    "tests/matrix/test_bursts.py",
    "tests/server/test_app_process.py",
    "tests/models/test_model_files_that_lie.py",
    "tests/e2e/test_promise.py",
    "tests/vllm/test_vision_scripts.py",
)


class SharedWorkScheduling(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        name, bracket, parameters = nodeid.partition("[")
        if not (bracket and name.startswith(_MATRIX)):
            return super()._split_scope(nodeid)
        family = parameters.partition("-")[0]
        caches = _CACHE.findall(parameters)
        beside = ["adapters"] if "adapters" in nodeid else []
        return " ".join(["tests/matrix", family.rstrip("]"), *beside, *caches])

    def _assign_work_unit(self, node: Any) -> None:
        """What is meant for it, or else the first that is left."""
        scopes = (self._is_spare(node) and self._waiting()) or self._computing()
        for scope in scopes[:1]:
            self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)

    def _waiting(self) -> list[str]:
        return [scope for scope in MOSTLY_WAITING if scope in self.workqueue]

    def _computing(self) -> list[str]:
        longest = [scope for scope in LONGEST if scope in self.workqueue]
        return longest or [scope for scope in self.workqueue if not (self._num_spare() and scope in MOSTLY_WAITING)]

    def _num_spare(self) -> int:
        return max(0, min(MOST_SPARE, self.numnodes - (os.cpu_count() or 1)))

    def _is_spare(self, node: Any) -> bool:
        return int(node.gateway.id.removeprefix("gw")) >= self.numnodes - self._num_spare()
