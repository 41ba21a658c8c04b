"""Every client of httpx reads the certificates of all authorities; tests make thousands that never see one."""

from __future__ import annotations

import functools
import os
import ssl
from typing import Any

import certifi


def read_certificates_once() -> None:
    """From here on in this process, for the file that clients read unless they are told another."""
    make = ssl.create_default_context
    usual = os.environ.get("SSL_CERT_FILE", certifi.where())
    shared = functools.cache(lambda: make(cafile=usual))

    def create(*args: Any, **options: Any) -> ssl.SSLContext:
        return shared() if not args and options == {"cafile": usual} else make(*args, **options)

    ssl.create_default_context = create
