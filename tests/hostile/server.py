"""The server that is attacked: a real one, on a tiny random llama, with the defaults users have and every route."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tests.helpers.tiny_models import make_tiny
from tests.hostile.health import Target, warm_up
from tests.server.helpers import ServerProcess

# Few KV blocks, so that the memory they take is there from the start and they are evicted and used again.
FLAGS = ("--served-model-name", "tiny", "--max-model-len", "512", "--num-gpu-blocks-override", "1000")
WHOLE = ("--enable-lora", "--allow-runtime-lora-updating", "--enable-prompt-embeds")
# Reads all that a message may have, in few tokens.
TEMPLATE = (
    "{{ bos_token }}{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}{% for message in messages %}"
    "{{ '<|user|>' + message.role }}{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content or [] %}{{ part.text }}{% endfor %}{% endif %}"
    "{% for call in message.tool_calls or [] %}{{ call.function.name }}{{ call.function.arguments | tojson }}"
    "{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@contextlib.contextmanager
def start_server(folder: Path, *flags: str) -> Iterator[Target]:
    """A server process of its own; the model is made in `folder` unless it is there."""
    model = folder if (folder / "config.json").exists() else make_tiny("llama", folder)
    with ServerProcess(model, *FLAGS, *WHOLE, "--chat-template", TEMPLATE, *flags) as server:
        target = Target(server.url, server.process.pid, server.output, is_warm=True)
        warm_up(target)
        yield target
