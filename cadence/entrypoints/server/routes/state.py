"""What every route may reach, and how: `State = Annotated[ServerState, Depends(server_state)]`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, cast

from fastapi import Depends
from starlette.requests import HTTPConnection

from cadence.config.server.serve_options import ServeOptions
from cadence.engine.log_queue import LogQueue, NullLogQueue
from cadence.entrypoints.server.http.admission import AdmissionControl
from cadence.entrypoints.server.http.bodies import BodyReader
from cadence.entrypoints.server.http.errors import model_not_found
from cadence.entrypoints.server.http.ignored import IgnoredFields
from cadence.entrypoints.server.http.tenants import Tenants
from cadence.entrypoints.server.protocol.sampling import rank_of
from cadence.entrypoints.server.responses.client import ResponseClient
from cadence.entrypoints.server.routes.peers import NO_PEERS, Peers
from cadence.entrypoints.server.routes.served_adapters import AdapterLink, ServedAdapters

if TYPE_CHECKING:
    from cadence.entrypoints.async_llm import AsyncLLM
    from cadence.entrypoints.server.chat.engine import ChatEngine
    from cadence.entrypoints.speech.service import Speech


@dataclass(frozen=True, slots=True)
class ServerState:
    llm: AsyncLLM
    options: ServeOptions
    default_sampling: Mapping[str, Any]  # where a request says nothing: the model's, and what the server's options add
    admission: AdmissionControl
    chat: ChatEngine
    bodies: BodyReader
    chat_template: str  # source of the template given to the server; "" = the model's own
    tenants: Tenants
    logs: LogQueue | NullLogQueue
    ignored: IgnoredFields
    adapters: ServedAdapters
    adapter_link: AdapterLink
    responses: ResponseClient
    speech: Speech
    peers: Peers = NO_PEERS
    started: int = field(default_factory=lambda: int(time.time()))  # seconds since 1970

    @property
    def model_names(self) -> list[str]:
        """Names under which the model answers; the first one signs the answers."""
        return list(self.options.served_model_name) or [self.llm.model_name]

    def check_model(self, name: str | None) -> str:
        """The name to sign an answer with: the one asked for, if it is ours or any will do. None asks for the first."""
        if not name:
            return self.model_names[0]
        known = name in self.model_names or self.adapters.of(name) is not None
        if not known and not self.options.skip_model_name_validation:
            raise model_not_found(name)
        return name

    def check_writer(self, name: str | None) -> str:
        """As `check_model`, of a request for text: before its messages are written by a template."""
        self.llm.config.pooling.check_writes()
        return self.check_model(name)

    def data_parallel_rank(self, connection: HTTPConnection) -> int | None:
        return rank_of(connection.headers, self.llm.config.parallel.data_parallel_size)

    def is_ready(self) -> bool:
        """Whether requests are taken and, where some run, steps still happen."""
        return not self.admission.draining and self.llm.is_ready() and not self.is_stuck()

    def is_stuck(self) -> bool:
        return bool(self.admission.in_flight) and self.llm.last_step_age() > self.options.max_step_age


MODEL_STATE = "cadence.state"  # in the ASGI scope, where several models are served: the state of the one asked for


async def server_state(connection: HTTPConnection) -> ServerState:
    """Async, because FastAPI sends others to a thread."""
    return cast(ServerState, connection.scope.get(MODEL_STATE) or connection.app.state.server)


State = Annotated[ServerState, Depends(server_state)]
