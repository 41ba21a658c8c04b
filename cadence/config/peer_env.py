"""The environment variables that vLLM's users set, and whether each works here. All others of its variables have no
effect and are named."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from cadence.config.args import EngineArgs
from cadence.config.peer_flag import Support
from cadence.core.errors import ConfigError

logger = logging.getLogger("cadence.config")

NOT_READ = "it is not read"


@dataclass(frozen=True, slots=True)
class PeerVariable:
    name: str
    support: Support
    why: str  # of one that works: what it does here


def _works(name: str, what: str) -> PeerVariable:
    return PeerVariable(name, Support.WORKS, what)


def _no_effect(name: str, why: str) -> PeerVariable:
    return PeerVariable(name, Support.NO_EFFECT, why)


def _refused(name: str, why: str) -> PeerVariable:
    return PeerVariable(name, Support.REFUSED, why)


VARIABLES = (
    _works("VLLM_API_KEY", "as `--api-key`, when none is given"),
    _works("VLLM_LOGGING_LEVEL", "as `CADENCE_LOG_LEVEL`"),
    _no_effect("VLLM_CONFIGURE_LOGGING", "logging is set up by the commands alone, never by `import cadence`"),
    _refused("VLLM_LOGGING_CONFIG_PATH", "logs are lines on stderr; set the level with CADENCE_LOG_LEVEL"),
    _refused("VLLM_USE_MODELSCOPE", "models come from the Hugging Face hub, or from a folder"),
    _works("VLLM_CACHE_ROOT", "as `CADENCE_CACHE`"),
    _no_effect("VLLM_CONFIG_ROOT", "there is no folder of settings; `--config` names a file"),
    _no_effect("VLLM_HOST_IP", "it is for several machines; the server listens on `--host`"),
    _no_effect("VLLM_PORT", "it is for several machines; the server listens on `--port`"),
    _works("VLLM_CPU_KVCACHE_SPACE", "size of the KV cache on the CPU, in GiB"),
    _no_effect("VLLM_CPU_OMP_THREADS_BIND", "threads stay on the cores of this process; `--cpu-threads` counts them"),
    _no_effect("VLLM_CPU_NUM_OF_RESERVED_CPU", "`--cpu-threads` says how many threads compute"),
    _no_effect("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "the model's own length is the limit; hf_overrides may extend it"),
    _works("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "as `--allow-runtime-lora-updating`"),
    _works("VLLM_SERVER_DEV_MODE", "as `--server-dev-mode`"),
    _works("VLLM_SKIP_MODEL_NAME_VALIDATION", "as `--skip-model-name-validation`"),
    _works("VLLM_BATCH_INVARIANT", "as `--deterministic`; on a CPU it always holds"),
    _no_effect("VLLM_USE_V1", "there is one engine"),
    _no_effect("VLLM_USE_V2_MODEL_RUNNER", "there is one runner"),
    _no_effect("VLLM_ENABLE_V1_MULTIPROCESSING", "a server's engine has a process of its own, an `LLM` has not"),
    _no_effect("VLLM_WORKER_MULTIPROC_METHOD", "the engine's process is a fresh one"),
    _works("VLLM_PP_LAYER_PARTITION", "as `--pp-layer-partition`, when none is given"),
    _works("VLLM_NO_USAGE_STATS", "nothing is ever sent"),
    _works("VLLM_DO_NOT_TRACK", "nothing is ever sent"),
    _works("DO_NOT_TRACK", "nothing is ever sent"),
    _no_effect("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "idle connections are kept for 65 seconds"),
    _no_effect("VLLM_MAX_N_SEQUENCES", "`--max-completions` is the limit (1024)"),
    _no_effect("VLLM_PLUGINS", "plugins are not loaded"),
    _no_effect("VLLM_ATTENTION_BACKEND", "kernels are chosen for the device; `--kernels` names others"),
    _no_effect("VLLM_TARGET_DEVICE", "the device is found when the engine starts; `--device` names it"),
)  # fmt: skip

# Those that stand for an option of `serve`, whose name is theirs without VLLM_.
SWITCHES = ("VLLM_SERVER_DEV_MODE", "VLLM_SKIP_MODEL_NAME_VALIDATION", "VLLM_ALLOW_RUNTIME_LORA_UPDATING")
_OFF = ("", "0", "false")


def check(found: Mapping[str, str]) -> None:
    """`found`: vLLM's variables that are set (`env.peer_variables()`). Raises where one is refused."""
    for variable in VARIABLES:
        if variable.support is Support.REFUSED and is_on(found, variable.name):
            raise ConfigError(f"{variable.name} cannot be honoured: {variable.why}; unset it", variable.name)


def applied(args: EngineArgs, found: Mapping[str, str]) -> EngineArgs:
    """The options with what the variables ask for. One line is logged for each variable that has no effect."""
    check(found)
    table = {variable.name: variable for variable in VARIABLES}
    for name in sorted(found):
        variable = table.get(name, _no_effect(name, NOT_READ))
        if variable.support is Support.NO_EFFECT:
            logger.warning("the variable %s has no effect here: %s", name, variable.why)
    return dataclasses.replace(
        args,
        deterministic=args.deterministic or is_on(found, "VLLM_BATCH_INVARIANT"),
        pp_layer_partition=args.pp_layer_partition or found.get("VLLM_PP_LAYER_PARTITION", "").strip(),
    )


def is_on(found: Mapping[str, str], name: str) -> bool:
    return found.get(name, "").strip().lower() not in _OFF
