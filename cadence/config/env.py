"""The only place that reads environment variables. There are at most ten, all listed in `NAMES`, and one that a server
leaves for the server that takes its place (`take_replaced`). Some are set unless the user did: for torch
(`keep_freed_memory`), tokenizers (`tokenise_in_caller`), Ray (`keep_ray_local`) and NCCL (`keep_nccl_local`)."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from pathlib import Path

from cadence.core.errors import ConfigError

NAMES = {
    "CADENCE_CACHE": "folder for downloaded models and compiled kernels",
    "VLLM_CACHE_ROOT": "the same, under the name vLLM users have set",
    "XDG_CACHE_HOME": "parent of the default cache folder",
    "CADENCE_LOG_LEVEL": "DEBUG, INFO, WARNING or ERROR",
    "VLLM_LOGGING_LEVEL": "the same, under the name vLLM users have set",
    "VLLM_CPU_KVCACHE_SPACE": "size of the KV cache on the CPU, in GiB; 0 or unset = a share of the memory",
    "CC": "C compiler for the CPU kernels",
    "CADENCE_CPU_ISA": "instruction set of the CPU's matrix products; auto or unset = the best there is",
    "HF_TOKEN": "access token for gated models on the hub",
    "VLLM_API_KEY": "key that requests to the server must bring, when no --api-key is given",
}

# Names of variables that hold credentials, by their words; and the values of others that carry a password in a URL.
_CREDENTIAL_NAME = re.compile(
    r"(TOKEN|SECRET|CREDENTIAL|PASSWORD|PASSWD|PASSPHRASE|COOKIE|BEARER|APIKEY)S?(_|\d|$)|(^|_)(KEY|AUTH|PWD|PASS|PAT|DSN)S?(_|$)",
    re.IGNORECASE,
)
_CREDENTIAL_VALUE = re.compile(r"\w://[^/\s@]*:[^/\s@]+@|-----BEGIN [A-Z ]*PRIVATE KEY", re.IGNORECASE)
_NO_CREDENTIALS = ("PWD", "OLDPWD")
_FOR_RAY = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")  # it is the engine that speaks to a cluster
_PYTHON = ("PATH", "HOME", "PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "VIRTUAL_ENV", "LD_LIBRARY_PATH")
_PASSED_ON = (*_PYTHON, "LANG", "LC_ALL", "TZ")

_REPLACED = "CADENCE_REPLACED"  # set by a server that replaces itself, for itself

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def _read(*names: str) -> str:
    """The first of `names` that is set to something, else ""."""
    for name in names:
        if name not in NAMES:
            raise KeyError(f"{name} is not listed in cadence/config/env.py")
        if value := os.environ.get(name, "").strip():
            return value
    return ""


def keep_freed_memory() -> None:
    """torch's allocator on ARM gives memory back 10 ms after it was freed, and a prefill would fault its buffers in
    again at every layer. To be called before torch is imported; what the user has set stays."""
    os.environ.setdefault("MIMALLOC_PURGE_DELAY", "1000")  # milliseconds


def tokenise_in_caller() -> None:
    """Texts are tokenised one by one: a thread for each core would only take the engine's."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def keep_ray_local() -> None:
    """The processes of a Ray cluster that is started here listen on this machine alone, and tell its makers nothing;
    what the user has set stays."""
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


def keep_nccl_local() -> None:
    """Ranks of one machine meet on its loopback interface; what the user has set stays."""
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")


def bare_environment() -> dict[str, str]:
    """For a process that needs Python and the time of day, and no secret of this one."""
    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return passed | {"TOKENIZERS_PARALLELISM": "false", "MALLOC_ARENA_MAX": "1"}


def with_python_path(folder: Path) -> dict[str, str]:
    """This process's environment, with `folder` first on the path of every Python."""
    others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != str(folder)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *others])}


def cache_root() -> Path:
    """Where Cadence keeps what can be fetched or built again. Not created here."""
    if chosen := _read("CADENCE_CACHE", "VLLM_CACHE_ROOT"):
        return Path(chosen).expanduser()
    parent = _read("XDG_CACHE_HOME")
    return (Path(parent).expanduser() if parent else Path.home() / ".cache") / "cadence"


def log_level() -> str:
    names = ("CADENCE_LOG_LEVEL", "VLLM_LOGGING_LEVEL")
    name = next((name for name in names if _read(name)), names[0])
    level = _read(name).upper() or "WARNING"
    if level not in LOG_LEVELS:
        raise ConfigError(f"{name}={level!r} is not one of {', '.join(LOG_LEVELS)}", name)
    return level


def cpu_kv_cache_bytes() -> int:
    """Bytes asked for the KV cache on the CPU; 0 = not asked."""
    text = _read("VLLM_CPU_KVCACHE_SPACE")
    if not text:
        return 0
    try:
        gib = float(text)
    except ValueError:
        gib = -1.0
    if not 0 <= gib < float("inf"):
        raise ConfigError(f"VLLM_CPU_KVCACHE_SPACE={text!r} is not a size in GiB (0 or more)", "VLLM_CPU_KVCACHE_SPACE")
    return int(gib * 2**30)


def compiler() -> list[str]:
    """The C compiler as a command: what the user named, else the first of the usual ones that is there; [] = none."""
    if named := shlex.split(_read("CC")):
        return named
    return [found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))][:1]


def has_compiler() -> bool:
    command = compiler()
    return bool(command) and shutil.which(command[0]) is not None


def cpu_isa() -> str:
    """Name of an instruction set, checked where the CPU's kernels are opened; "auto" = the best there is."""
    return _read("CADENCE_CPU_ISA").lower() or "auto"


def hf_token() -> str:
    return _read("HF_TOKEN")


def api_key() -> str:
    return _read("VLLM_API_KEY")


def peer_variables() -> dict[str, str]:
    """The variables of vLLM's that are set, whatever becomes of them (`peer_env`)."""
    return {name: value for name, value in os.environ.items() if name.startswith("VLLM_") or name == "DO_NOT_TRACK"}


def replaced_environment(descriptor: int, count: int, unfinished: int = -1) -> dict[str, str]:
    """This process's, for the server that takes its place."""
    return {**os.environ, _REPLACED: f"{descriptor} {count} {unfinished}"}


def take_replaced() -> tuple[int, int, int]:
    """(descriptor of the socket, times that a server was replaced in this process, descriptor of the file with its
    unfinished answers); (-1, 0, -1) = none was. No process that is started from here sees it."""
    descriptor, count, unfinished = os.environ.pop(_REPLACED, "-1 0 -1").split(" ")
    return int(descriptor), int(count), int(unfinished)


def engine_environment() -> dict[str, str]:
    """What the engine process gets: everything but credentials, other than Ray's. It fetches nothing: the front has
    found the model's files."""
    return {name: value for name, value in os.environ.items() if name in _FOR_RAY or not is_credential(name, value)}


def is_credential(name: str, value: str) -> bool:
    """Whether a variable looks like something only its owner should know."""
    if name in _NO_CREDENTIALS:
        return False
    return _CREDENTIAL_NAME.search(name) is not None or _CREDENTIAL_VALUE.search(value) is not None
