"""Runs the Python blocks of one page in one interpreter, as a reader would who pastes them one after another.

Requests are lines of JSON on stdin, answers lines on what was stdout; what the blocks print goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any


def main(namespace: dict[str, Any]) -> None:
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    for line in requests:
        request = json.loads(line)
        answers.write(json.dumps(_run(request["page"], request["line"], request["text"], namespace)) + "\n")
        answers.flush()


def _run(page: str, line: int, text: str, namespace: dict[str, Any]) -> str:
    """Nothing, or the traceback: its line numbers are those of the page."""
    try:
        exec(compile("\n" * line + text, page, "exec"), namespace)
    except BaseException:
        return traceback.format_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return ""


if __name__ == "__main__":
    sys.path[0] = ""
    main(sys.modules["__main__"].__dict__)
