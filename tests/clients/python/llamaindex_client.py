"""LlamaIndex: OpenAILike complete, chat and streams, an agent with a function."""

from __future__ import annotations

from typing import Any

from exchange import (
    CAPITAL,
    REAL,
    REAL_URL,
    SCRIPTED,
    SCRIPTED_URL,
    WEATHER,
    WEATHER_ANSWER,
    check,
    expect,
    finish,
    get_weather,
)
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike


def model(url: str, name: str, **options: Any) -> OpenAILike:
    settings = {"context_window": 8192, "is_chat_model": True, "max_retries": 0, "timeout": 60, **options}
    return OpenAILike(model=name, api_base=f"{url}/v1", api_key="none", **settings)


@check
def complete_and_chat() -> None:
    llm = model(REAL_URL, REAL, max_tokens=30, temperature=0)
    expect("Paris" in llm.complete(CAPITAL).text)
    expect("Paris" in (llm.chat([ChatMessage(role="user", content=CAPITAL)]).message.content or ""))


@check
def stream() -> None:
    llm = model(REAL_URL, REAL, max_tokens=30, temperature=0)
    pieces = [piece.delta or "" for piece in llm.stream_chat([ChatMessage(role="user", content=CAPITAL)])]
    expect("Paris" in "".join(pieces) and len(pieces) > 3, pieces)


@check
def text_completion() -> None:
    llm = model(REAL_URL, REAL, max_tokens=8, temperature=0, is_chat_model=False)
    expect(llm.complete("The capital of France is").text)


@check
def tool_loop() -> None:
    llm = model(SCRIPTED_URL, SCRIPTED, is_function_calling_model=True)
    answer = llm.predict_and_call([FunctionTool.from_defaults(get_weather)], user_msg=WEATHER)
    expect("sunny" in str(answer), answer)


@check
async def agent_stream() -> None:
    llm = model(SCRIPTED_URL, SCRIPTED, is_function_calling_model=True, context_window=100_000)
    for streaming in (False, True):
        agent = FunctionAgent(tools=[get_weather], llm=llm, streaming=streaming)
        answer = str(await agent.run(WEATHER))
        expect(answer == WEATHER_ANSWER, answer)


@check
def embeddings() -> None:
    embedder = OpenAILikeEmbedding(model_name=REAL, api_base=f"{REAL_URL}/v1", api_key="none", max_retries=0)
    first, second = embedder.get_text_embedding_batch(["a dog", "a cat"])
    expect(embedder.get_text_embedding("a dog") == first != second, (first[:4], second[:4]))


finish()
