"""LangChain with pictures: its own parts of messages, and those of the providers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from exchange import check, expect, finish
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from seeing import FIRST, MODEL, QUESTION, SECOND, URL, coded, data_url, kind

TEXT = {"type": "text", "text": QUESTION}
options: Any = {"api_key": "none", "model": MODEL, "max_retries": 0, "timeout": 120, "temperature": 0, "max_tokens": 10}
openai_chat = ChatOpenAI(base_url=f"{URL}/v1", **options)
openai_responses = ChatOpenAI(base_url=f"{URL}/v1", use_responses_api=True, **options)
anthropic_chat = ChatAnthropic(base_url=URL, **options)


def own(picture: Path) -> dict[str, Any]:
    """As LangChain writes it for every provider."""
    return {"type": "image", "base64": coded(picture), "mime_type": kind(picture)}


def openais(picture: Path) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(picture)}}


def said(model: Any, *parts: Any) -> str:
    return str(model.invoke([HumanMessage(content=[*parts, TEXT])]).text)


@check
def openai_invoke() -> None:
    for model in (openai_chat, openai_responses):
        first = said(model, own(FIRST))
        expect(first == said(model, openais(FIRST)) != said(model, own(SECOND)), first)
    expect(said(openai_chat, own(FIRST)) == said(openai_responses, own(FIRST)))


@check
def anthropic_invoke() -> None:
    first = said(anthropic_chat, own(FIRST))
    expect(first == said(openai_chat, own(FIRST)) != said(anthropic_chat, own(SECOND)), first)


@check
def several_and_batch() -> None:
    both = [HumanMessage(content=[own(FIRST), TEXT, own(SECOND)])]
    answers = openai_chat.batch([both, both, [HumanMessage(content=[own(FIRST), TEXT])]])
    expect(answers[0].text == answers[1].text != answers[2].text, answers)


@check
def stream() -> None:
    message = [HumanMessage(content=[own(FIRST), TEXT])]
    expect("".join(chunk.text for chunk in openai_chat.stream(message)) == said(openai_chat, own(FIRST)))
    expect("".join(chunk.text for chunk in anthropic_chat.stream(message)) == said(anthropic_chat, own(FIRST)))


finish()
