"""Tenants, where several API keys are set: each key is one, and what is one's is hidden from the others.

A tenant of `--tenant-config` is known by its name, whichever of its keys it brings; another by a digest of its key,
salted anew by each server, so that nothing that leaves it tells of the key. Without keys, and with one, there is one
tenant: "".
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence

from starlette.types import Scope

from cadence.config.server.tenants import TenantSpec
from cadence.entrypoints.server.http.request_ids import add_engine_id

TENANT = "cadence.tenant"  # in the ASGI scope
DIGEST_CHARS = 32


class Tenants:
    """Keys are compared in constant time: digests of one length, and all of them, whichever fits."""

    def __init__(
        self,
        keys: Sequence[str],
        share_prefix_cache: bool = False,
        salt: bytes = b"",
        specs: Sequence[TenantSpec] = (),
    ) -> None:
        """keys: of tenants without a name. salt: that of all processes of the server; b"" = there is no other"""
        self._salt = salt or new_salt()
        self._names = {self._digest_of(key): spec.name for spec in specs for key in spec.api_keys}
        self._digests = sorted({*self._names, *map(self._digest_of, keys)})
        self._share_prefix_cache = share_prefix_cache

    @property
    def are_several(self) -> bool:
        return len(self._digests) > 1

    def tenant(self, key: bytes) -> str | None:
        """Whose key it is; None for an unknown key."""
        given = self._digest(key)
        matches = [digest for digest in self._digests if hmac.compare_digest(given, digest)]
        if not matches:
            return None
        return self._names.get(matches[0], matches[0] if self.are_several else "")

    def cache_salt(self, scope: Scope, own: str | None) -> str:
        """What the request's prefix is cached under: no two pairs of tenant and own salt give the same."""
        tenant = "" if self._share_prefix_cache else tenant_of(scope)
        return f"{tenant}:{own or ''}" if tenant else own or ""

    def engine_id(self, scope: Scope, name: str) -> str:
        """The id of a request inside the server: its client chose the beginning, and only that."""
        engine_id = f"{name}-{secrets.token_hex(8)}{self._mark(tenant_of(scope))}"
        add_engine_id(scope, engine_id)
        return engine_id

    def owns(self, scope: Scope, engine_id: str) -> bool:
        return engine_id.endswith(self._mark(tenant_of(scope)))

    def _mark(self, tenant: str) -> str:
        """Ends a tenant's engine ids, which no other tenant gets to see."""
        return "-" + self._digest(b"engine id " + tenant.encode())[:16] if tenant else ""

    def _digest_of(self, key: str) -> str:
        return self._digest(key.encode("utf-8", "surrogateescape"))

    def _digest(self, content: bytes) -> str:
        return hmac.new(self._salt, content, hashlib.sha256).hexdigest()[:DIGEST_CHARS]


def new_salt() -> bytes:
    return secrets.token_bytes(32)


def tenant_of(scope: Scope) -> str:
    return str(scope.get(TENANT, ""))
