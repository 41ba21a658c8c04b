"""`cadence run-batch`: a file of OpenAI batch requests, answered offline by the code that serves them online."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cadence.config.cli import Parser, add_engine_flags, add_flag, engine_options
from cadence.config.command_line import values
from cadence.core.errors import CadenceError, ConfigError
from cadence.entrypoints.cli.run_batch.app import AppReply, AsgiApp, post
from cadence.entrypoints.cli.run_batch.files import LinePlace, RequestFile, ResultFile, is_failure
from cadence.entrypoints.cli.serve_flags import serve_flags
from cadence.entrypoints.cli.shared.progress_lines import ProgressLines

if TYPE_CHECKING:
    from cadence.config.args import EngineArgs
    from cadence.config.server.serve_options import ServeOptions
    from cadence.entrypoints.async_llm import AsyncLLM

# Fields of ServeOptions that shape answers; the others concern sockets and untrusted clients.
SERVE_FLAGS = (
    "served_model_name",
    "response_role",
    "chat_template_content_format",
    "default_chat_template_kwargs",
    "tool_call_parser",
    "tool_parser_plugin",
    "enable_auto_tool_choice",
    "exclude_tools_when_tool_choice_none",
    "reasoning_parser",
    "reasoning_parser_plugin",
    "return_tokens_as_token_ids",
    "enable_prompt_tokens_details",
)
OTHER_URLS = frozenset({"/pooling", "/classify", "/score", "/rerank", "/v2/rerank", "/v2/embed", "/generative_scoring"})
NO_LIMIT = 2**40
MAX_WAIT = 30.0  # seconds between attempts while the queue is full


def build_parser() -> Parser:
    parser = Parser("cadence run-batch", "Answer a file of OpenAI batch requests.")
    parser.conflict_handler = "resolve"  # flags about answers take the place of the engine's refusals of them
    parser.add_argument(
        "-i",
        "--input-file",
        required=True,
        metavar="IN.jsonl",
        help='requests or {"prompt": …}, one JSON object a line',
    )
    parser.add_argument(
        "-o", "--output-file", required=True, metavar="OUT.jsonl", help="answers; an old file is continued"
    )
    parser.add_argument(
        "--max-concurrency", type=values.human_int, default=256, metavar="N", help="most requests under way [256]"
    )
    parser.add_argument("--overwrite", action="store_true", help="answer every line again, whatever the output holds")
    parser.add_argument("--retry-failed", action="store_true", help="ask lines again whose answer is an error")
    group = parser.add_argument_group("answers")
    add_engine_flags(parser)
    for flag in serve_flags():
        if flag.name in SERVE_FLAGS:
            add_flag(group, flag)
    return parser


def run(argv: Sequence[str]) -> int:
    flags = build_parser().parse(argv)
    if flags.max_concurrency < 1:
        raise ConfigError(f"max_concurrency={flags.max_concurrency} is not at least 1", "max_concurrency")
    source, target = Path(flags.input_file).expanduser(), Path(flags.output_file).expanduser()
    if source.resolve() == target.resolve():
        raise ConfigError("the input and the output are the same file", "output_file")
    requests = RequestFile(source)
    try:
        return _run(flags, requests, ResultFile(target, flags.overwrite))
    finally:
        requests.close()


def _run(flags: argparse.Namespace, requests: RequestFile, results: ResultFile) -> int:
    try:
        if flags.retry_failed:
            results.drop_failed()
        todo = [place for place in requests.places if place.custom_id not in results.offsets]
        tally = Tally(skipped=len(requests.places) - len(todo))
        if todo:
            asyncio.run(_serve(flags, Batch(requests, results, todo, tally)))
        results.settle([place.custom_id for place in requests.places])
    finally:
        results.close()
    print(tally.summary(results.path), file=sys.stderr)
    return 1 if tally.failed else 0


@dataclass(slots=True)
class Tally:
    skipped: int = 0
    answered: int = 0
    failed: int = 0

    def count(self, record: dict[str, Any]) -> None:
        if is_failure(record):
            self.failed += 1
        else:
            self.answered += 1

    def summary(self, path: Path) -> str:
        known = f", {self.skipped} were there already" if self.skipped else ""
        return f"{path}: {self.answered} answered, {self.failed} failed{known}"


@dataclass(frozen=True, slots=True)
class Batch:
    requests: RequestFile
    results: ResultFile
    todo: list[LinePlace]
    tally: Tally


async def _serve(flags: argparse.Namespace, batch: Batch) -> None:
    """Starts the engine in its own process and the application in this one, and lets the batch run through them."""
    from cadence.config.args import EngineArgs
    from cadence.config.local_files import check_local_files

    engine = {name: value for name, value in engine_options(flags).items() if name not in SERVE_FLAGS}
    engine.setdefault("use_tqdm_on_load", sys.stderr.isatty())
    args = EngineArgs.from_options(**engine)
    check_local_files(args)
    try:
        from cadence.entrypoints.async_llm import AsyncLLM
        from cadence.entrypoints.server.app import create_app
        from cadence.entrypoints.server.chat.format_tables import load_formats
    except ImportError as error:
        raise ConfigError(f"{error.name} is missing: pip install 'cadence-llm[serve]'", "run-batch") from None

    options = _serve_options(flags, args)
    load_formats(options)
    llm = await AsyncLLM.start(args, _say)
    try:
        app = create_app(llm, options)
        with _bar(len(batch.todo)) as on_end:
            await run_batch(app, llm, batch, flags.max_concurrency, on_end)
    finally:
        await llm.shutdown(drain=False)


def _serve_options(flags: argparse.Namespace, args: EngineArgs) -> ServeOptions:
    """There are no other clients, so the limits that protect a server are lifted."""
    from cadence.config.server.serve_options import ServeOptions

    given = {name: getattr(flags, name) for name in SERVE_FLAGS if hasattr(flags, name)}
    given.setdefault("served_model_name", [args.model])
    given |= {"chat_template": args.chat_template, "trust_request_chat_template": args.trust_request_chat_template}
    limits: dict[str, Any] = {
        "max_queued_requests": NO_LIMIT,
        "max_queued_tokens": NO_LIMIT,
        "max_body_bytes": NO_LIMIT,
    }
    return ServeOptions(**limits, **given)


async def run_batch(
    app: AsgiApp, llm: AsyncLLM, batch: Batch, concurrency: int, on_end: Callable[[dict[str, Any]], None]
) -> None:
    """Every line of `batch.todo` once. Raises EngineDeadError; answers that came before it are in the file."""
    places = iter(batch.todo)

    async def work() -> None:
        for place in places:
            record = await answer_line(app, llm, batch.requests.read(place))
            batch.results.append(record)
            batch.tally.count(record)
            on_end(record)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(batch.todo))):
                group.create_task(work())
    except* CadenceError as errors:
        raise errors.exceptions[0] from None


async def answer_line(app: AsgiApp, llm: AsyncLLM, entry: dict[str, Any]) -> dict[str, Any]:
    request_id = f"batch-{uuid.uuid4().hex}"
    if mistake := find_mistake(entry):
        return _record(entry, request_id, mistake[0], {"error": mistake[1]})
    body = json.dumps(entry["body"]).encode()
    while True:
        reply = await post(app, entry["url"], body, request_id)
        if reply.status >= 500:
            await llm.check_health()
        if reply.status != 429:
            return _record(entry, request_id, reply.status, reply.body)
        await asyncio.sleep(_retry_after(reply))


def find_mistake(entry: dict[str, Any]) -> tuple[int, dict[str, Any]] | None:
    """What no route could answer: a status, and an error as OpenAI shapes it."""
    method, url, body = entry.get("method", "POST"), entry.get("url"), entry.get("body")
    if method != "POST":
        return 405, _error(405, f"method {method!r} is not POST", "method", "method_not_allowed")
    if not isinstance(url, str) or not url.startswith("/"):
        return 400, _error(400, "url is not a path such as /v1/chat/completions", "url", "invalid_url")
    if not (url.startswith("/v1/") or url in OTHER_URLS) or "?" in url or not url.isascii() or not url.isprintable():
        return 404, _error(404, f"there is no {url} in a batch", "url", "not_found")
    if not isinstance(body, dict):
        return 400, _error(400, "body is missing or not a JSON object", "body", "invalid_body")
    if body.get("stream"):
        return 400, _error(400, "a batch cannot stream", "stream", "invalid_body")
    if body.get("encoding_format") in ("bytes", "bytes_only"):
        return 400, _error(400, "a line holds no bytes: use base64", "encoding_format", "invalid_body")
    return None


def _error(status: int, message: str, param: str, reason: str) -> dict[str, Any]:
    fields = {"message": message, "type": "invalid_request_error", "param": param, "code": status}
    return {**fields, "reason": reason}


def _retry_after(reply: AppReply) -> float:
    text = reply.headers.get("retry-after", "")
    return min(float(text) if text.isdecimal() else 1.0, MAX_WAIT)


def _record(entry: dict[str, Any], request_id: str, status: int, body: Any) -> dict[str, Any]:
    problem = None
    if status != 200:
        problem = body.get("error", body) if isinstance(body, dict) else {"message": str(body)}
    return {
        "id": f"batch_req_{uuid.uuid4().hex}",
        "custom_id": entry["custom_id"],
        "response": {"status_code": status, "request_id": request_id, "body": body},
        "error": problem,
    }


@contextmanager
def _bar(total: int) -> Iterator[Callable[[dict[str, Any]], None]]:
    try:
        from tqdm import tqdm
    except ImportError:
        tqdm = None
    if tqdm is None or not sys.stderr.isatty():
        yield _line_writer(total)
        return
    with tqdm(total=total, desc="Batch", dynamic_ncols=True) as bar:
        failed = [0]

        def on_end(record: dict[str, Any]) -> None:
            failed[0] += is_failure(record)
            bar.set_postfix_str(f"failed: {failed[0]}", refresh=False)
            bar.update(1)

        yield on_end


def _line_writer(total: int) -> Callable[[dict[str, Any]], None]:
    lines, done = ProgressLines(), itertools.count(1)
    return lambda record: lines.show("requests answered", next(done), total)


def _say(stage: str) -> None:
    print(stage, file=sys.stderr, flush=True)
