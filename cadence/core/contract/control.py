"""Everything that is asked of an engine beside steps: one line for each verb.

A line says what a verb takes and answers, where it is carried out, how long the answer may take, how the answers of
several ranks or engines are combined, and what is replayed to the next engine should this one die.

    front                engine process           executor                    rank
    Supervisor.call ->   EngineCore.call     ->   Executor.call          ->   Worker.call
    deadline, replay     handlers by name         deadline, one answer        handlers by name

Where several fronts share engines, one of them asks the owner of the engines for what concerns all fronts.

A new verb is a line here, its handler, and what users call. Whatever carries calls stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import NoneType
from typing import Any, Generic, TypeVar

from cadence.core.adapter import AdapterOutcome, AdapterSpec
from cadence.core.contract.engine_state import EngineState, joined
from cadence.core.contract.hold import PauseCall, SleepCall
from cadence.core.contract.sleep import SLEEP_TAGS, WeightsState
from cadence.core.errors import EngineDeadError
from cadence.core.model.state_spec import StateRoom

P = TypeVar("P")  # type of a payload
A = TypeVar("A")  # type of an answer

BETWEEN_STEPS_S = 30.0  # for what an engine does between two steps
ADAPTER_S = 600.0  # for an adapter's files to be read, or a long step to end: a call given up too early is not replayed
QUEUED_S = 3600.0  # for ranks that may have a step to compute first; a supervisor's limit for steps is shorter
MEMORY_S = 3600.0  # for memory to be given back and taken again, and for weights to be read from files
START_S = 86_400.0  # for what ranks do before the first request; those that die or fall silent are noticed at once
OWNER_S = 86_400.0  # for requests to end; what the owner then asks of the engines has deadlines of its own


class Where(Enum):
    OWNER = "owner"  # by the process that owns the engines, for all fronts that they have
    ENGINE = "engine"  # by the process of the scheduler, between two steps
    EXECUTOR = "executor"  # by every rank, after what was queued before


OWNER, ENGINE, EXECUTOR = Where.OWNER, Where.ENGINE, Where.EXECUTOR


def _done_by_all(answers: Sequence[Any]) -> Any:
    """The answer is that all have done it."""


def _keep_nothing(payload: Any) -> str:
    return ""


def _drop_nothing(payload: Any) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class Verb(Generic[P, A]):
    name: str
    payload: type[P]  # NoneType = there is none
    answer: type[A]
    at: Where
    deadline_s: float
    combined: Callable[[list[A]], A] = _done_by_all  # answers of all ranks, or of all engines -> the one answer
    cumulative: bool = False  # ranks answer lists: `combined` takes out what counts, and the rest waits for more
    # What is replayed after a restart, by names that a log can show: a call is kept under the name that `keeps` gives
    # it ("" = it is not kept) until another call under that name is, or one drops the name.
    keeps: Callable[[P], str] = _keep_nothing
    drops: Callable[[P], tuple[str, ...]] = _drop_nothing
    is_first: bool = False  # replayed before the engine has any of its requests again
    forgets_prefixes: bool = False  # no engine has a prefix in its cache afterwards: routers count on none

    def unanswered(self, who: str) -> EngineDeadError:
        """What is raised where the deadline has passed."""
        return EngineDeadError(f"{who} gave no answer to {self.name!r} for {self.deadline_s:g} s")


ControlTable = Mapping[str, Verb[Any, Any]]  # by name


def _take_common(answers: list[list[AdapterOutcome]]) -> list[AdapterOutcome]:
    """An adapter counts when all ranks have read it, and cannot be used where one of them says so."""
    by_path = [{outcome.path: outcome for outcome in answer} for answer in answers]
    shared = [path for path in by_path[0] if all(path in found for found in by_path)]
    for answer in answers:
        answer[:] = [outcome for outcome in answer if outcome.path not in shared]
    return [_agreed(path, [found[path] for found in by_path]) for path in shared]


def _agreed(path: str, outcomes: list[AdapterOutcome]) -> AdapterOutcome:
    errors = [outcome.error for outcome in outcomes if outcome.error]
    if not errors and len({outcome.digest for outcome in outcomes}) > 1:
        errors = ["the adapter changed while it was read"]
    return AdapterOutcome(path, "", errors[0]) if errors else outcomes[0]


def _all_numbers(answers: list[list[int]]) -> list[int]:
    return sorted({number for answer in answers for number in answer})


def _all_parts(answers: list[list[str]]) -> list[str]:
    return [tag for tag in SLEEP_TAGS if any(tag in answer for answer in answers)]


def _least_room(answers: list[StateRoom]) -> StateRoom:
    return StateRoom(min(each.rows for each in answers), min(each.snapshots for each in answers))


def _adapter(number: int) -> str:
    return f"adapter {number}"


def _pin(number: int) -> str:
    return f"the pin of adapter {number}"


def _added(spec: AdapterSpec) -> str:
    return _adapter(spec.number)


def _removed(number: int) -> tuple[str, ...]:
    return _adapter(number), _pin(number)


def _pause(paused: bool) -> str:
    return "the pause" if paused else ""


def _resume(paused: bool) -> tuple[str, ...]:
    return () if paused else ("the pause",)


def _sleep(level: int) -> str:
    return "the sleep"


def _awake_part(tag: str) -> str:
    return f"the waking of {tag}" if tag else ""


def _no_sleep(tag: str) -> tuple[str, ...]:
    return () if tag else ("the sleep", *_PARTS)


def _no_part(level: int) -> tuple[str, ...]:
    return _PARTS


def _weights(state: WeightsState) -> str:
    return "the weights"


_PARTS = tuple(map(_awake_part, SLEEP_TAGS))

# Columns: name, payload, answer, where, deadline, how answers are combined; what is replayed.

# Who runs, who waits, and numbers for metrics. Payload: whether the map of blocks is wanted, too.
STATE = Verb("state", bool, EngineState, ENGINE, BETWEEN_STEPS_S, joined)

# Forgets all cached prefixes; not while requests run, unless the payload says that these are to be preempted for it.
RESET_PREFIX_CACHE = Verb("reset_prefix_cache", bool, bool, ENGINE, BETWEEN_STEPS_S, all, forgets_prefixes=True)

# Forgets what towers have made of pictures and sounds, also while requests run: these have theirs encoded again.
RESET_ENCODER_CACHE = Verb("reset_encoder_cache", NoneType, NoneType, ENGINE, BETWEEN_STEPS_S)

# True: no step begins until it is False; requests keep their rows and blocks.
PAUSE = Verb("pause", bool, NoneType, ENGINE, BETWEEN_STEPS_S, keeps=_pause, drops=_resume, is_first=True)

# Nothing is computed, and memory is given back, as the level says. Requests that run are preempted, and wait with those
# that come; all that was cached is forgotten.
SLEEP = Verb(
    "sleep", int, NoneType, ENGINE, MEMORY_S, keeps=_sleep, drops=_no_part, is_first=True, forgets_prefixes=True
)

# By a tag, "" = all: it has its memory again. Steps begin again by the last of the tags, which comes once all engines
# have their memory.
WAKE_UP = Verb("wake_up", str, NoneType, ENGINE, MEMORY_S, keeps=_awake_part, drops=_no_sleep, is_first=True)

# The tags of what sleeps.
SLEEPING_PARTS = Verb("sleeping_parts", NoneType, list[str], ENGINE, BETWEEN_STEPS_S, _all_parts)

# Weights are these from now on. Requests that run go on with them; all that was cached is forgotten.
UPDATE_WEIGHTS = Verb(
    "update_weights", WeightsState, NoneType, ENGINE, MEMORY_S, keeps=_weights, is_first=True, forgets_prefixes=True
)

# Adapters in host memory, by the numbers that users give them: reads one now; forgets one, once no request has it;
# keeps one there and in its slot; names all. Answers: whether it was done.
ADD_ADAPTER = Verb("add_adapter", AdapterSpec, bool, ENGINE, ADAPTER_S, any, keeps=_added)
REMOVE_ADAPTER = Verb("remove_adapter", int, bool, ENGINE, ADAPTER_S, any, drops=_removed)
PIN_ADAPTER = Verb("pin_adapter", int, bool, ENGINE, ADAPTER_S, any, keeps=_pin)
LIST_ADAPTERS = Verb("list_adapters", NoneType, list[int], ENGINE, ADAPTER_S, _all_numbers)

# States there is memory for, beside the blocks of a KV cache.
STATE_ROOM = Verb("state_room", NoneType, StateRoom, EXECUTOR, START_S, _least_room)

# So many states.
ALLOCATE_STATES = Verb("allocate_states", StateRoom, NoneType, EXECUTOR, START_S)

# Blocks of the KV cache there is memory for beside the states: what was told, or what the largest step leaves of what
# is allowed.
KV_BLOCKS = Verb("kv_blocks", NoneType, int, EXECUTOR, START_S, min)

# So many blocks.
ALLOCATE_KV = Verb("allocate_kv", int, NoneType, EXECUTOR, START_S)

# Compiles and captures what requests will need: nothing (none), what is needed most (lazy), or all (full).
WARM_UP = Verb("warm_up", str, NoneType, EXECUTOR, START_S)

# A piece of what `lazy` has left, some tens of milliseconds. Answer: whether there is more.
WARM_UP_MORE = Verb("warm_up_more", NoneType, bool, EXECUTOR, QUEUED_S, any)

# Memory goes back to the system, and addresses stay: by the level of sleep, and again by tag.
GIVE_BACK_MEMORY = Verb("give_back_memory", int, NoneType, EXECUTOR, MEMORY_S)
TAKE_BACK_MEMORY = Verb("take_back_memory", str, NoneType, EXECUTOR, MEMORY_S)

# Whether files have the weights that are wanted, by what they say of their tensors; and these weights, where those
# before them lie.
CHECK_WEIGHTS = Verb("check_weights", WeightsState, NoneType, EXECUTOR, MEMORY_S)
LOAD_WEIGHTS = Verb("load_weights", WeightsState, NoneType, EXECUTOR, MEMORY_S)

# A forward of the dummy row, beside those of engines that share experts with this one.
JOIN_ROUND = Verb("join_round", NoneType, NoneType, EXECUTOR, QUEUED_S)

# Begins to read the adapter at a path, and returns at once; one that was begun is not begun again.
PREPARE_ADAPTER = Verb("prepare_adapter", str, NoneType, EXECUTOR, QUEUED_S)

# Of those begun, the ones that were read since the last call. Plans may name their digests from now on.
_READ = list[AdapterOutcome]
PREPARED_ADAPTERS = Verb("prepared_adapters", NoneType, _READ, EXECUTOR, QUEUED_S, _take_common, cumulative=True)

# By its digest. No later plan puts it into a slot; where it lies in one, it stays there.
FORGET_ADAPTER = Verb("forget_adapter", str, NoneType, EXECUTOR, QUEUED_S)

# One of several fronts asks for these; the owner tells all of them, and asks the engines by the verbs above. Weights: a
# folder or a file, "" = read again where they came from.
PAUSE_ALL = Verb("pause_all", PauseCall, NoneType, OWNER, OWNER_S)
RESUME_ALL = Verb("resume_all", NoneType, NoneType, OWNER, OWNER_S)
SLEEP_ALL = Verb("sleep_all", SleepCall, NoneType, OWNER, OWNER_S)
WAKE_ALL = Verb("wake_all", list[str], NoneType, OWNER, OWNER_S)  # tags
ANY_SLEEPS = Verb("any_sleeps", NoneType, bool, OWNER, OWNER_S)
SET_WEIGHTS = Verb("set_weights", str, NoneType, OWNER, OWNER_S)

# Every line above.
CONTROL: ControlTable = {verb.name: verb for verb in list(globals().values()) if isinstance(verb, Verb)}
