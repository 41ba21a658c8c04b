"""Taking the address before the model is loaded: a port in use is said at once."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
import stat

from cadence.config.server.serve_options import ServeOptions
from cadence.core.errors import ConfigError


def bind(options: ServeOptions) -> socket.socket:
    """Bound, not yet listening: clients are refused, not kept waiting, until the server is ready."""
    return _bind_unix(options.uds) if options.uds else _bind_tcp(options.host, options.port)


def url_of(bound: socket.socket, options: ServeOptions) -> str:
    if options.uds:
        return f"unix:{options.uds}"
    host, port = bound.getsockname()[:2]
    scheme = "https" if options.ssl_certfile else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def in_use(options: ServeOptions) -> ConfigError:
    if options.uds:
        return ConfigError(f"another server listens on {options.uds}", "uds")
    return ConfigError(f"port {options.port} on {options.host} is in use; choose another with --port", "port")


def allow_many_connections() -> None:
    """Each stream is an open file. The soft limit goes up to what the system allows anyway."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _bind_tcp(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise in_use(ServeOptions(host=host, port=port)) from None
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}", "host") from None
    return bound


def _bind_unix(path: str) -> socket.socket:
    """Only this user may connect. The socket of a dead server is replaced."""
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if os.path.exists(path) and stat.S_ISSOCK(os.stat(path).st_mode) and not _answers(path):
            os.unlink(path)
        bound.bind(path)
        os.chmod(path, 0o600)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise in_use(ServeOptions(uds=path)) from None
        raise ConfigError(f"cannot listen on {path}: {error.strerror or error}", "uds") from None
    return bound


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True
