"""The clients: where each is installed, and the script of its exchange."""

from __future__ import annotations

from dataclasses import dataclass

SPEECH, PICTURES = "speech", "pictures"


@dataclass(frozen=True, slots=True)
class Client:
    name: str  # as the table shows it
    package: str  # whose version is shown
    environment: str  # a file of requirements/, or node
    script: str  # below python/ or node/
    seconds: float = 240.0  # it may take on a busy machine of two cores
    server: str = ""  # it talks to one that hears (`SPEECH`), or to one that sees (`PICTURES`), alone


CLIENTS = (
    Client("openai (Python)", "openai", "sdk", "python/openai_sdk.py"),
    Client("openai (Node)", "openai", "node", "node/openai_sdk.mjs"),
    Client("openai audio (Python)", "openai", "sdk", "python/openai_audio.py", server=SPEECH),
    Client("openai audio (Node)", "openai", "node", "node/openai_audio.mjs", server=SPEECH),
    Client("openai pictures (Python)", "openai", "sdk", "python/openai_pictures.py", server=PICTURES),
    Client("anthropic (Python)", "anthropic", "sdk", "python/anthropic_sdk.py"),
    Client("anthropic (Node)", "@anthropic-ai/sdk", "node", "node/anthropic_sdk.mjs"),
    Client("anthropic pictures (Python)", "anthropic", "sdk", "python/anthropic_pictures.py", server=PICTURES),
    Client("Claude Code", "@anthropic-ai/claude-code", "node", "python/claude_code.py", 600.0),
    Client("Codex CLI", "@openai/codex", "node", "python/codex_cli.py", 480.0),
    Client("LangChain", "langchain", "sdk", "python/langchain_client.py"),
    Client("LangChain pictures", "langchain", "sdk", "python/langchain_pictures.py", server=PICTURES),
    Client("LiteLLM", "litellm", "litellm", "python/litellm_client.py"),
    Client("LlamaIndex", "llama-index-core", "llamaindex", "python/llamaindex_client.py"),
    Client("Cohere", "cohere", "cohere", "python/cohere_sdk.py"),
    Client("Chroma", "chromadb", "chroma", "python/chroma_client.py"),
    Client("Pydantic AI", "pydantic-ai-slim", "sdk", "python/pydantic_ai_client.py"),
    Client("Instructor", "instructor", "instructor", "python/instructor_client.py"),
    Client("OpenAI Agents", "openai-agents", "sdk", "python/openai_agents_client.py"),
    Client("Vercel AI SDK", "ai", "node", "node/vercel_ai.mjs"),
    Client("Vercel AI SDK pictures", "ai", "node", "node/vercel_pictures.mjs", server=PICTURES),
    Client("lm-eval", "lm-eval", "lmeval", "python/lm_eval_client.py", 600.0),
    Client("GuideLLM", "guidellm", "guidellm", "python/guidellm_client.py", 600.0),
)
