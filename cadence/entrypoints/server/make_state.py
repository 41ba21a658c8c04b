"""The state that routes share, around the engine of one model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cadence.audio.limits import DEFAULT_LIMITS, AudioLimits
from cadence.config.engine_config import EngineConfig
from cadence.config.server.serve_options import ServeOptions
from cadence.config.server.tenants import TenantSpec, tenants_of
from cadence.engine.log_queue import LogQueue, NullLogQueue
from cadence.entrypoints.conversation import read_template
from cadence.entrypoints.server.chat.engine import ChatEngine
from cadence.entrypoints.server.chat.failures import raise_failure
from cadence.entrypoints.server.chat.format_tables import load_formats
from cadence.entrypoints.server.http.admission import AdmissionControl
from cadence.entrypoints.server.http.bodies import BodyReader
from cadence.entrypoints.server.http.ignored import IgnoredFields
from cadence.entrypoints.server.http.json_limits import JsonLimits
from cadence.entrypoints.server.http.request_deadline import with_deadline
from cadence.entrypoints.server.http.tenant_ledger import NullLedger, open_ledger
from cadence.entrypoints.server.http.tenants import Tenants
from cadence.entrypoints.server.responses.client import ResponseClient
from cadence.entrypoints.server.routes.peers import Peers
from cadence.entrypoints.server.routes.served_adapters import ServedAdapters, served_at_start
from cadence.entrypoints.server.routes.state import ServerState
from cadence.entrypoints.speech.open import open_speech

if TYPE_CHECKING:
    from cadence.entrypoints.async_llm import AsyncLLM


@dataclass(frozen=True, slots=True)
class ServerParts:
    """What a server has once, however many models it serves."""

    bodies: BodyReader
    specs: tuple[TenantSpec, ...]
    tenants: Tenants
    ledger: NullLedger
    ignored: IgnoredFields
    logs: LogQueue | NullLogQueue

    @classmethod
    def of(cls, options: ServeOptions, logs: LogQueue | NullLogQueue, peers: Peers) -> ServerParts:
        specs = tenants_of(options)
        return cls(
            bodies=BodyReader(JsonLimits.of(options)),
            specs=specs,
            tenants=Tenants(options.api_key, options.share_prefix_cache, peers.tenant_salt, specs),
            ledger=open_ledger(specs, peers.tenant_ledger),
            ignored=IgnoredFields(options.strict_requests),
            logs=logs,
        )


@dataclass(frozen=True, slots=True)
class KeptParts:
    """What goes on when a model is unloaded and loaded again."""

    admission: AdmissionControl  # with what it has counted
    adapters: ServedAdapters


def make_state(
    llm: AsyncLLM, options: ServeOptions, parts: ServerParts, peers: Peers, kept: KeptParts | None = None
) -> ServerState:
    """kept: of the same model, which was loaded before"""
    kept = kept or _new_parts(llm, options, parts)
    admission, adapters = kept.admission, kept.adapters
    llm.inputs.weigh({spec.name: spec.weight for spec in parts.specs})
    llm.metrics.written = admission.ledger.add_tokens
    timed = with_deadline(llm, options.request_deadline)
    own = {"stream_interval": options.stream_interval} if options.stream_interval > 1 else {}
    return ServerState(
        llm=timed,
        options=options,
        default_sampling=llm.default_sampling | own,
        admission=admission,
        chat=ChatEngine(timed, options, load_formats(options)),
        bodies=parts.bodies,
        chat_template=read_template(options.chat_template or llm.config.tokenizer.chat_template),
        tenants=parts.tenants,
        logs=parts.logs,
        ignored=parts.ignored,
        peers=peers,
        responses=ResponseClient(peers.open_store, timed.abort),
        speech=open_speech(timed, raise_failure, _audio_limits(options)),
        adapters=adapters,
        adapter_link=peers.open_adapters(adapters),
    )


def _new_parts(llm: AsyncLLM, options: ServeOptions, parts: ServerParts) -> KeptParts:
    """Of several processes each admits its share."""
    config, share = llm.config, options.api_server_count
    names = list(options.served_model_name) or [llm.model_name]
    admission = AdmissionControl(
        max_requests=-(-(_max_running(config) + options.max_queued_requests) // share),
        max_tokens=-(-options.max_queued_tokens // share),
        max_model_len=config.model.max_model_len,
        ledger=parts.ledger,
    )
    adapters = served_at_start(options.lora_modules, names, options.lora_root, config.lora.enabled)
    return KeptParts(admission, adapters)


def _audio_limits(options: ServeOptions) -> AudioLimits:
    return replace(DEFAULT_LIMITS, num_bytes=options.max_audio_bytes, seconds=float(options.max_audio_seconds))


def _max_running(config: EngineConfig) -> int:
    return config.scheduler.max_num_seqs * config.parallel.data_parallel_size
