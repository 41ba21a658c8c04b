"""Responses that run in the background, and conversations that are cut to fit."""

from __future__ import annotations

import time
from typing import Any

import openai
import pytest

from cadence.entrypoints.server.responses import background, event_log, manager
from cadence.entrypoints.server.responses.truncation import starts_of
from cadence.entrypoints.server.routes import responses
from tests.server.fakes_chat import MODEL, FailingLLM, openai_client
from tests.server.test_responses import Serve, ask


def settled(client: openai.OpenAI, response_id: str) -> Any:
    """The response, once it is over."""
    for _ in range(500):
        answer = client.responses.retrieve(response_id)
        if answer.status not in ("queued", "in_progress"):
            return answer
        time.sleep(0.02)
    raise AssertionError("it never ended")


def test_a_response_is_asked_for_until_it_is_there(serve: Serve) -> None:
    app = serve({"script": "Good day to you.", "delay": 0.02})
    client = openai_client(app)
    begun = ask(client, background=True)
    assert begun.status == "queued" and begun.background and not begun.output
    answer = settled(client, begun.id)
    assert answer.status == "completed" and answer.output_text == "Good day to you." and answer.usage.output_tokens
    app.settle()
    assert app.state.admission.finished == 1
    again = ask(client, input="And?", previous_response_id=begun.id)
    assert again.previous_response_id == begun.id


def test_it_goes_on_when_its_reader_leaves_and_is_read_again(serve: Serve) -> None:
    client = openai_client(serve({"script": "Good day to you.", "delay": 0.02}))
    stream = ask(client, background=True, stream=True)
    first = next(iter(stream))
    assert first.type == "response.created" and first.response.status == "queued"
    stream.close()
    running = list(client.responses.retrieve(first.response.id, stream=True))
    answer = settled(client, first.response.id)
    assert answer.output_text == "Good day to you."
    kinds = [event.type for event in running]
    assert kinds[:3] == ["response.created", "response.queued", "response.in_progress"]
    assert kinds[-1] == "response.completed" and running[-1].response == answer
    assert [event.sequence_number for event in running] == list(range(len(running)))
    for after in (0, 5, len(running) - 1):
        rest = list(client.responses.retrieve(answer.id, stream=True, starting_after=after))
        assert rest == running[after + 1 :]


def test_a_background_response_is_cancelled(serve: Serve) -> None:
    app = serve({"delay": 0.02})
    client = openai_client(app)
    begun = ask(client, background=True, max_output_tokens=900)
    with pytest.raises(openai.BadRequestError, match="cancel it first"):
        client.responses.delete(begun.id)
    with pytest.raises(openai.BadRequestError, match="in progress"):
        ask(client, previous_response_id=begun.id)
    assert client.responses.cancel(begun.id).status == "cancelled"
    app.settle()
    assert app.state.admission.in_flight == 0 and app.state.admission.aborted == 1
    assert client.responses.retrieve(begun.id).status == client.responses.cancel(begun.id).status == "cancelled"
    client.responses.delete(begun.id)


def test_what_goes_wrong_in_the_background_is_told(serve: Serve, fake_model: Any) -> None:
    client = openai_client(serve(FailingLLM(fake_model, after=0)))
    answer = settled(client, ask(client, background=True, max_output_tokens=9).id)
    assert answer.status == "failed" and "the step failed" in answer.error.message
    assert answer.error.code == "server_error"
    client = openai_client(serve())
    answer = settled(client, ask(client, background=True, input="word " * 3000).id)
    assert answer.status == "failed" and "tokens" in answer.error.message
    assert answer.error.code == "invalid_prompt"


def test_only_so_many_run_in_the_background(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "MAX_BACKGROUND", 2)
    monkeypatch.setattr(background, "MAX_BACKGROUND", 2)
    client = openai_client(serve({"delay": 0.02}))
    running = [ask(client, background=True, max_output_tokens=900) for _ in range(2)]
    with pytest.raises(openai.RateLimitError, match="2 responses in the background"):
        ask(client, background=True)
    assert client.responses.cancel(running[0].id).status == "cancelled"
    assert ask(client, background=True, max_output_tokens=1).status == "queued"


def test_the_time_of_a_background_response_is_limited(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses, "MAX_AGE_S", 0.2)
    app = serve({"delay": 0.02})
    client = openai_client(app)
    answer = settled(client, ask(client, background=True, max_output_tokens=900).id)
    assert answer.status == "failed" and "0.2 s" in answer.error.message
    app.settle()
    assert app.state.admission.in_flight == 0


def test_the_events_of_a_response_are_bounded(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log.EventLog.__init__, "__defaults__", (2000,))
    client = openai_client(serve({"script": "Good day to you."}))
    begun = ask(client, background=True, stream=True)
    with pytest.raises(openai.APIError, match="too many"):
        list(begun)


def test_events_are_kept_only_where_they_were_asked_for(serve: Serve) -> None:
    client = openai_client(serve({"script": "Good day to you."}))
    for made in (ask(client), settled(client, ask(client, background=True).id)):
        with pytest.raises(openai.BadRequestError, match="background and stream"):
            client.responses.retrieve(made.id, stream=True)


def test_tenants_do_not_see_each_others(serve: Serve) -> None:
    app = serve({"delay": 0.02}, api_key=["one", "two"])
    body = {"model": MODEL, "input": "hi", "background": True, "stream": False, "max_output_tokens": 900}
    with app.client() as http:
        one, two = {"authorization": "Bearer one"}, {"authorization": "Bearer two"}
        name = http.post("/v1/responses", json=body, headers=one).json()["id"]
        assert http.get(f"/v1/responses/{name}", headers=two).status_code == 404
        assert http.post(f"/v1/responses/{name}/cancel", headers=two).status_code == 404
        assert http.get(f"/v1/responses/{name}", headers=one).json()["status"] in ("queued", "in_progress")
        assert http.post(f"/v1/responses/{name}/cancel", headers=one).json()["status"] == "cancelled"


def turns(number: int) -> list[dict[str, Any]]:
    """A conversation that the fake model's length of 1024 tokens cannot hold from about the 25th turn on."""
    said = [[{"role": "user", "content": f"question {n} " + "x" * 20}, {"role": "assistant", "content": f"answer {n}"}]
            for n in range(number)]  # fmt: skip
    return [item for pair in said for item in pair]


def test_the_oldest_items_are_dropped_until_it_fits(serve: Serve) -> None:
    client = openai_client(serve())
    items: Any = [{"role": "developer", "content": "Be kind."}, *turns(60), {"role": "user", "content": "last"}]
    with pytest.raises(openai.BadRequestError):
        ask(client, input=items, max_output_tokens=200)
    answer = ask(client, input=items, max_output_tokens=200, truncation="auto", instructions="Be brief.")
    assert answer.truncation == "auto" and 0 < answer.dropped_items < 121
    first = items[1 + answer.dropped_items]
    assert answer.output_text.startswith(f"system: Be brief.\n\nBe kind.\n{first['role']}: {first['content']}")
    assert answer.usage.input_tokens <= 1024 - 200
    before = items[answer.dropped_items]  # with one more it would not fit
    assert answer.usage.input_tokens + len(f"{before['role']}: {before['content']}\n") > 1024 - 200


def test_what_fits_is_not_cut(serve: Serve) -> None:
    client = openai_client(serve({"script": "Yes."}))
    answer = ask(client, input=turns(3), truncation="auto")
    assert answer.dropped_items == 0 and answer.status == "completed"
    with pytest.raises(openai.BadRequestError):  # the last item alone is too long
        ask(client, input=[*turns(3), {"role": "user", "content": "x" * 3000}], truncation="auto")


def test_calls_and_their_outputs_stay_together() -> None:
    def call(name: str) -> dict[str, Any]:
        return {"type": "function_call", "call_id": name, "name": "f", "arguments": "{}"}

    def output(name: str) -> dict[str, Any]:
        return {"type": "function_call_output", "call_id": name, "output": "x"}

    user = {"role": "user", "content": "x"}
    items = [{"role": "system", "content": "s"}, user, call("a"), call("b"), output("a"), output("b"), user]
    assert starts_of(items) == [2, 6]
    assert starts_of([user, {"type": "reasoning"}, call("a"), output("a"), {"type": "message"}]) == [1, 4]
