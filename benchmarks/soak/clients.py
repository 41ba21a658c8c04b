"""The clients of a soak: those who read, those who read slowly, those who leave, those who do not read, and a hostile
one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from benchmarks.soak import answers
from benchmarks.soak.answers import Choice
from benchmarks.soak.ledger import Ledger
from benchmarks.soak.questions import Question
from tests.hostile.case import Case
from tests.hostile.cases import Cases
from tests.hostile.judge import problems
from tests.hostile.known_faults import ALL, known_case
from tests.hostile.wire import JSON, Answer, Connection, Request
from tests.server.streams import connect

DEADLINE_S = 120.0  # a request without an end by then is lost
RETRY_S = 0.5
LEAVE_S = 0.5  # between two streams that are left
STALL_S = 5.0  # of a client that does not read
_KNOWN_EVERY = 8  # of hostile requests one is a fault that a server once had and one a form; the rest are generated
READINESS = ("/readyz", "/health", "/ping", "/engine/state")  # routes that say whether the engine runs
_STRIDE = 7919  # between two forms


class Clients:
    """`expected`: the answer to each question from a solo run. All loops end when `over` is set."""

    def __init__(self, url: str, expected: Mapping[Question, list[Choice]], ledger: Ledger) -> None:
        self._url, self._expected, self._ledger = url, expected, ledger
        self._questions = list(expected)
        self.over = asyncio.Event()

    async def asks(self, seed: int) -> None:
        """Streamed or not, on a connection of its own."""
        rng, connection = random.Random(seed), Connection(self._url)
        while not self.over.is_set():
            question, stream = rng.choice(self._questions), rng.random() < 0.5
            answer = await connection.ask(_request(question, stream), DEADLINE_S)
            if not self._note(question, answer) or not answer.status:
                await asyncio.sleep(RETRY_S)
        connection.drop()

    async def reads_slowly(self, seed: int) -> None:
        """Takes a little of the stream at a time, to the end."""
        rng = random.Random(seed)
        while not self.over.is_set():
            question = rng.choice(self._questions)
            answer = await _slow_answer(self._url, _request(question, True, close=True), rng)
            self._note(question, answer)

    async def leaves(self, seed: int) -> None:
        """In the middle of a stream, without a word."""
        rng, connection = random.Random(seed), Connection(self._url)
        while not self.over.is_set():
            request = _request(rng.choice(self._questions), True, close=True)
            await connection.ask(request, DEADLINE_S, leave_after=rng.choice((0, 1, 300, 2000, 8000)))
            self._ledger.left += 1
            await asyncio.sleep(rng.random() * LEAVE_S)

    async def stalls(self, seed: int) -> None:
        """Asks for long streams and reads nothing of them."""
        rng = random.Random(seed)
        longest = max(self._questions, key=lambda question: int(question.body.get("max_tokens", 0)))
        while not self.over.is_set():
            with contextlib.suppress(OSError):
                _, writer = await connect(self._url)
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                for piece in _request(longest, True, close=True).pieces():
                    writer.write(piece)
                await asyncio.sleep(STALL_S * rng.random())
                writer.transport.abort()
                self._ledger.left += 1

    async def is_hostile(self, cases: Cases, forms: Sequence[Case], number: int) -> None:
        connection = Connection(self._url)
        while not self.over.is_set():
            case = cases.case(number)
            if number % _KNOWN_EVERY == 0:
                case = _known(number // _KNOWN_EVERY)
            elif number % _KNOWN_EVERY == 1:
                case = forms[number * _STRIDE % len(forms)]
            number += 1
            answer = await connection.ask(case.request, DEADLINE_S, case.leave_after)
            self._ledger.hostile += 1
            for problem in () if _tells_of_a_kill(case, answer) else problems(case, answer):
                self._ledger.hostile_problems += 1
                self._ledger.example(f"{case}: {problem}")
            if case.request.half or not case.is_http:
                connection.drop()
        connection.drop()

    def _note(self, question: Question, answer: Answer) -> bool:
        """False when it was refused and should be asked again."""
        ledger = self._ledger
        if answer.status == 429:
            ledger.refused += 1
            return False
        if answer.end != "whole" or not answer.status:
            ledger.lost += 1
            ledger.example(f"lost: {answer.end} after {answer.seconds:.1f} s, {len(answer.body)} bytes of {question}")
        elif answer.status != 200:
            ledger.errors[f"{answer.status} {_code(answer.body)}"] += 1
            ledger.example(f"{answer.status}: {answer.body[:300]!r} to {question}")
        else:
            self._compare(question, answer)
        return True

    def _compare(self, question: Question, answer: Answer) -> None:
        ledger = self._ledger
        streamed = answer.headers["content-type"].startswith("text/event-stream")
        got = answers.of_stream(answer.body) if streamed else answers.of_body(answer.body)
        if got is None and (code := answers.error_of_stream(answer.body)):
            ledger.errors[f"stream {code}"] += 1
            ledger.example(f"stream {code}: …{answer.body[-300:]!r} to {question}")
        elif got is None:
            ledger.lost += 1
            ledger.example(f"lost: a stream without an end, …{answer.body[-300:]!r} to {question}")
        elif got == self._expected[question]:
            ledger.right += 1
        else:
            ledger.wrong += 1
            ledger.example(f"wrong: {got} instead of {self._expected[question]} to {question}")


async def solo_answers(url: str, questions: Sequence[Question]) -> dict[Question, list[Choice]]:
    """Each question asked alone, twice, and answered alike both times."""
    connection, found = Connection(url), {}
    for question in questions:
        first, again = [await connection.ask(_request(question, stream), DEADLINE_S) for stream in (False, True)]
        if first.status != 200:
            raise RuntimeError(f"{question} is not answered: {first.status} {first.body[:300]!r}")
        found[question] = answers.of_body(first.body)
        read = answers.of_stream if question.has_stream else answers.of_body
        if read(again.body) != found[question]:
            raise RuntimeError(f"{question} has two answers")
    connection.drop()
    return found


def _request(question: Question, stream: bool, close: bool = False) -> Request:
    headers = (JSON, ("connection", "close")) if close else (JSON,)
    body = {**question.body, "stream": stream} if question.has_stream else question.body
    return Request("POST", question.path, headers, json.dumps(body).encode())


async def _slow_answer(url: str, request: Request, rng: random.Random) -> Answer:
    taken = b""
    try:
        reader, writer = await connect(url)
    except OSError:
        return Answer()
    try:
        async with asyncio.timeout(DEADLINE_S):
            for piece in request.pieces():
                writer.write(piece)
            while part := await reader.read(2048):
                taken += part
                await asyncio.sleep(rng.random() * 0.05)
    except (OSError, TimeoutError):
        return Answer()
    finally:
        writer.transport.abort()
    return _unchunked(taken)


def _unchunked(taken: bytes) -> Answer:
    head, _, rest = taken.partition(b"\r\n\r\n")
    if not head:
        return Answer()
    headers = {}
    for line in head.decode("latin-1").split("\r\n")[1:]:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    if "chunked" not in headers.get("transfer-encoding", ""):
        return Answer(int(head[9:12]), headers, rest, "whole")
    body, end = b"", "closed"
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        count = int(size, 16)
        if not count:
            end = "whole"
            break
        body, rest = body + rest[:count], rest[count + 2 :]
    return Answer(int(head[9:12]), headers, body, end)


def _code(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["reason"])
    except (ValueError, KeyError, TypeError):
        return "unknown"


def _tells_of_a_kill(case: Case, answer: Answer) -> bool:
    """The engine is killed now and then: a question about it is answered so."""
    return answer.status == 503 and case.request.target.startswith(READINESS)


def _known(number: int) -> Case:
    """One of the known faults, in turn; beside other traffic it may also come when there is no room."""
    case = known_case(number % len(ALL))
    return replace(case, expected=case.expected | {429})
