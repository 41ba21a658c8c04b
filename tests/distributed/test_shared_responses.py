"""Responses that several API processes keep together: each of them finds what another made, and goes on with what
another was making when it was killed."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.distributed.test_api_processes import Cluster
from tests.helpers.wide import KILLED_AND_STOPPED

pytestmark = pytest.mark.warm

TOKENS = 400
# Without line ends: the token of one is poison to the toy engine.
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }} / {% endfor %}assistant:"
Events = list[dict[str, Any]]


class ResponseCluster(Cluster):
    """Every request is a connection of its own, so that it meets the next process."""

    def __init__(self, model: Path, *flags: str) -> None:
        super().__init__(model, "--chat-template", TEMPLATE, *flags)

    def ask(self, method: str, path: str = "", **options: Any) -> tuple[int, Any]:
        """-> (the process that answered, its reply). What only reads is asked again where it met one that died."""
        while True:
            try:
                return self._ask(method, path, **options)
            except httpx.TransportError:
                if method != "GET":
                    raise

    def _ask(self, method: str, path: str, **options: Any) -> tuple[int, Any]:
        with (
            httpx.Client(base_url=self.url, trust_env=False, timeout=200) as client,
            client.stream(method, f"/v1/responses{path}", **options) as reply,
        ):
            port = reply.extensions["network_stream"].get_extra_info("client_addr")[1]
            pid = self.serving_pid(port)
            reply.read()
        return pid, reply

    def by_each(self, method: str, path: str, **options: Any) -> dict[int, httpx.Response]:
        """The replies of both processes."""
        found: dict[int, httpx.Response] = {}
        ends = time.monotonic() + 120
        while len(found) < 2 and time.monotonic() < ends:
            pid, reply = self.ask(method, path, **options)
            found[pid] = reply
        assert len(found) == 2
        return found

    def read(self, path: str, count: int, method: str = "GET", **options: Any) -> tuple[int, Events]:
        """At least `count` events of a stream, which is left then. -> (the process that sent them, events)"""
        while True:
            try:
                return self._read(method, path, count, **options)
            except httpx.TransportError:
                if method != "GET":
                    raise

    def _read(self, method: str, path: str, count: int, **options: Any) -> tuple[int, Events]:
        events, pid = [], 0
        with (
            httpx.Client(base_url=self.url, trust_env=False, timeout=200) as client,
            client.stream(method, f"/v1/responses{path}", **options) as reply,
        ):
            assert reply.status_code == 200, reply.read()
            port = reply.extensions["network_stream"].get_extra_info("client_addr")[1]
            pid = self.serving_pid(port)
            for line in reply.iter_lines():
                if line.startswith("data: "):
                    events.append(json.loads(line[6:]))
                    if len(events) == count:
                        break
        return pid, events

    def settled(self, name: str) -> dict[str, Any]:
        """A response, once it is over."""
        ends = time.monotonic() + 120
        while time.monotonic() < ends:
            answer: dict[str, Any] = self.ask("GET", f"/{name}")[1].json()
            if answer["status"] not in ("queued", "in_progress"):
                return answer
            time.sleep(0.05)
        raise AssertionError("it never ended")


def body(**fields: Any) -> dict[str, Any]:
    return {"input": "Hello there", "max_output_tokens": TOKENS, "ignore_eos": True, "background": True, **fields}


def text_of(events: Events) -> str:
    return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")


def check_whole(events: Events, first: int = 0) -> None:
    """No gap, no repetition, one end, and what was said in pieces is what was said."""
    assert [event["sequence_number"] for event in events] == list(range(first, first + len(events)))
    kinds = [event["type"] for event in events]
    for once in ("response.created", "response.queued", "response.in_progress", "response.output_item.added",
                 "response.content_part.added", "response.output_text.done", "response.output_item.done"):  # fmt: skip
        assert kinds.count(once) == 1, once
    last = events[-1]["response"]
    assert last["status"] == "incomplete", last["error"]
    assert last["usage"]["output_tokens"] == TOKENS
    (item,) = last["output"]
    assert item["content"][0]["text"] == text_of(events)
    assert {event["item_id"] for event in events if "item_id" in event} == {item["id"]}


@pytest.fixture(scope="module")
def cluster(tiny_model: Callable[[str], Path]) -> Iterator[ResponseCluster]:
    with ResponseCluster(tiny_model("llama")) as running:  # type: ignore[assignment]
        yield running


@pytest.fixture(scope="module")
def undisturbed(cluster: ResponseCluster) -> str:
    _, events = cluster.read("", 10**9, method="POST", json=body(stream=True))
    check_whole(events)
    return text_of(events)


def test_what_one_made_all_find_and_delete(cluster: ResponseCluster) -> None:
    fields = {"background": False, "max_output_tokens": 5}
    made = cluster.ask("POST", json=body(**fields))[1].json()
    found = cluster.by_each("GET", f"/{made['id']}")
    assert all(reply.json() == made for reply in found.values())
    later = cluster.by_each("POST", "", json=body(**fields, previous_response_id=made["id"]))
    for reply in later.values():
        told = cluster.ask("GET", f"/{reply.json()['id']}/input_items", params={"order": "asc"})[1].json()["data"]
        assert told[1]["id"] == made["output"][0]["id"]
    assert cluster.ask("DELETE", f"/{made['id']}")[1].status_code == 200
    assert all(reply.status_code == 404 for reply in cluster.by_each("GET", f"/{made['id']}").values())


def test_a_running_one_is_seen_read_and_cancelled_by_all(cluster: ResponseCluster) -> None:
    made = cluster.ask("POST", json=body(max_output_tokens=480))[1].json()
    seen = cluster.by_each("GET", f"/{made['id']}")
    assert {reply.json()["status"] for reply in seen.values()} <= {"queued", "in_progress"}
    refused = cluster.by_each("DELETE", f"/{made['id']}")
    assert all("cancel it first" in reply.text for reply in refused.values())
    cancelled = cluster.by_each("POST", f"/{made['id']}/cancel")
    assert all(reply.json()["status"] == "cancelled" for reply in cancelled.values())
    assert cluster.settled(made["id"])["status"] == "cancelled"


@pytest.mark.parametrize("sent", KILLED_AND_STOPPED)
def test_its_process_is_struck_and_the_stream_goes_on(
    cluster: ResponseCluster, undisturbed: str, sent: signal.Signals
) -> None:
    """The client connects again with the number of the last event it has, to whichever process it meets."""
    cluster.until(cluster.both_serve)
    pid, first = cluster.read("", 60, method="POST", json=body(stream=True))
    name = first[0]["response"]["id"]
    os.kill(pid, sent)
    after = first[-1]["sequence_number"]
    _, rest = cluster.read(f"/{name}", 10**9, params={"stream": "true", "starting_after": after})
    check_whole([*first, *rest])
    assert text_of([*first, *rest]) == undisturbed
    assert cluster.settled(name)["output"][0]["content"][0]["text"] == undisturbed
    cluster.until(lambda: len(cluster.api) == 2)
    cluster.until(cluster.both_serve)
    for reply in cluster.by_each("GET", f"/{name}", params={"stream": "true"}).values():
        again = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: ")]
        assert again == [*first, *rest]


@pytest.mark.wide
def test_every_process_is_killed_in_turn(cluster: ResponseCluster, undisturbed: str) -> None:
    """Twice the one that has it; then nobody is left for a while."""
    cluster.until(cluster.both_serve)
    _, events = cluster.read("", 40, method="POST", json=body(stream=True))
    name = events[0]["response"]["id"]
    for _ in range(2):
        for child in cluster.api:
            child.kill()
        cluster.until(lambda: len(cluster.api) == 2)
        after = events[-1]["sequence_number"]
        query = {"stream": "true", "starting_after": after}
        events += cluster.read(f"/{name}", 40, params=query)[1]
    _, rest = cluster.read(
        f"/{name}", 10**9, params={"stream": "true", "starting_after": events[-1]["sequence_number"]}
    )
    check_whole([*events, *rest])
    assert text_of([*events, *rest]) == undisturbed


@pytest.mark.wide
def test_one_that_is_sampled_goes_on_as_it_would_have(cluster: ResponseCluster) -> None:
    """Without a stream there are no events to compare with: all is made again."""
    cluster.until(cluster.both_serve)
    pid, reply = cluster.ask("POST", json=body(temperature=0.9))
    os.kill(pid, signal.SIGKILL)
    answer = cluster.settled(reply.json()["id"])
    assert answer["status"] == "incomplete" and answer["usage"]["output_tokens"] == TOKENS
    assert answer["created_at"] == reply.json()["created_at"]
    cluster.until(cluster.both_serve)


def test_a_foreground_stream_ends_with_its_process(cluster: ResponseCluster) -> None:
    cluster.until(cluster.both_serve)
    fields = {"stream": True, "background": False}
    with (
        httpx.Client(base_url=cluster.url, trust_env=False, timeout=200) as client,
        client.stream("POST", "/v1/responses", json=body(**fields)) as reply,
    ):
        lines = reply.iter_lines()
        name = next(json.loads(line[6:]) for line in lines if line.startswith("data: "))["response"]["id"]
        pid = cluster.serving_pid(reply.extensions["network_stream"].get_extra_info("client_addr")[1])
        assert cluster.ask("GET", f"/{name}")[1].json()["status"] == "in_progress"
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(httpx.RemoteProtocolError):
            list(lines)
    cluster.until(lambda: cluster.ask("GET", f"/{name}")[1].status_code == 404)
    cluster.until(cluster.both_serve)


@pytest.mark.wide
def test_tenants_are_the_same_in_all_processes(tiny_model: Callable[[str], Path]) -> None:
    with ResponseCluster(tiny_model("llama"), "--api-key", "one", "two", "--data-parallel-size", "1") as cluster:
        assert isinstance(cluster, ResponseCluster)
        one, two = ({"authorization": f"Bearer {key}"} for key in ("one", "two"))
        fields = body(background=False, max_output_tokens=3)
        name = cluster.ask("POST", json=fields, headers=one)[1].json()["id"]
        for headers, status in ((one, 200), (two, 404)):
            found = cluster.by_each("GET", f"/{name}", headers=headers)
            assert {reply.status_code for reply in found.values()} == {status}
