"""What the scripts about pictures share: where the server is, and two pictures as data URLs and in base64.

Run as `python SCRIPT URL PICTURE PICTURE`; the server runs a tiny LLaVA, whose words mean nothing."""

from __future__ import annotations

import base64
import sys
from pathlib import Path

URL, FIRST, SECOND = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
MODEL = "llava"
KINDS = {".png": "image/png", ".jpg": "image/jpeg"}
QUESTION = "what is the quick brown fox"


def coded(picture: Path) -> str:
    return base64.b64encode(picture.read_bytes()).decode()


def kind(picture: Path) -> str:
    return KINDS[picture.suffix]


def data_url(picture: Path) -> str:
    return f"data:{kind(picture)};base64,{coded(picture)}"
