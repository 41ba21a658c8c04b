"""Which models are served."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field

from cadence.core.lora_request import LoRARequest
from cadence.entrypoints.server.http.errors import model_not_found
from cadence.entrypoints.server.routes.state import ServerState, State

router = APIRouter(tags=["models"])


class ModelPermission(BaseModel):
    id: str
    object: str = "model_permission"
    created: int
    allow_create_engine: bool = False
    allow_sampling: bool = True
    allow_logprobs: bool = True
    allow_search_indices: bool = False
    allow_view: bool = True
    allow_fine_tuning: bool = False
    organization: str = "*"
    group: str | None = None
    is_blocking: bool = False


class ModelCard(BaseModel):
    id: str
    object: str = "model"
    created: int  # seconds since 1970
    owned_by: str = "vllm"  # as clients of vLLM know it
    root: str  # what was loaded
    parent: str | None = None
    max_model_len: int  # tokens, prompt and output together
    input_modalities: list[str]  # text, and what else prompts may have
    permission: list[ModelPermission] = Field(default_factory=list)


class ModelList(BaseModel):
    object: str = "list"
    data: list[ModelCard]


@router.get("/v1/models")
async def list_models(state: State) -> ModelList:
    """One card per served name, then one per adapter."""
    adapters = [_adapter_card(state, adapter) for adapter in state.adapters.all()]
    return ModelList(data=[_card(state, name) for name in state.model_names] + adapters)


@router.get("/v1/models/{model:path}")
async def get_model(model: str, state: State) -> ModelCard:
    adapter = state.adapters.of(model)
    if adapter is not None:
        return _adapter_card(state, adapter)
    if model not in state.model_names:
        raise model_not_found(model)
    return _card(state, model)


def _adapter_card(state: ServerState, adapter: LoRARequest) -> ModelCard:
    card = _card(state, adapter.lora_name)
    return card.model_copy(update={"root": adapter.lora_path, "parent": state.model_names[0]})


def _card(state: ServerState, name: str) -> ModelCard:
    model: Any = state.llm.config.model
    permission = ModelPermission(id=f"modelperm-{name}", created=state.started)
    return ModelCard(
        id=name,
        created=state.started,
        root=model.files.name,
        max_model_len=model.max_model_len,
        input_modalities=["text", *state.llm.inputs.placeholders],
        permission=[permission],
    )
