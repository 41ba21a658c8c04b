"""From a chat to its answer: the template writes the prompt, the model goes on, the parsers read what it said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import fields
from typing import TYPE_CHECKING, Any, cast

from cadence.config.server.serve_options import ServeOptions
from cadence.core.errors import InvalidRequestError
from cadence.core.outputs import CompletionOutput, RequestOutput
from cadence.core.sampling_params import SamplingParams
from cadence.core.structured_outputs import StructuredOutputsParams
from cadence.engine.text.prompts import ParsedPrompt, TokensPrompt, resumed
from cadence.entrypoints.conversation import read_template
from cadence.entrypoints.media.offline import media_fields, with_media
from cadence.entrypoints.media.pending import PendingMedia
from cadence.entrypoints.media.service import MediaService
from cadence.entrypoints.server.chat.choice import Choice, ParsedChoice, PlainChoice
from cadence.entrypoints.server.chat.constraint import constraint_of
from cadence.entrypoints.server.chat.events import (
    ChatEvent,
    ChatJob,
    ChoiceEnd,
    LastReasoning,
    LastText,
    LastToolCall,
    PromptRead,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    Usage,
)
from cadence.entrypoints.server.chat.failures import raise_failure
from cadence.entrypoints.server.chat.format_tables import FormatTables
from cadence.entrypoints.server.chat.formats import NO_CALLS, CallReading, choose_formats
from cadence.entrypoints.server.chat.request_errors import as_sent, check_room
from cadence.entrypoints.server.chat.thinking_budget import budget_before_calls, thinking_ids
from cadence.entrypoints.server.http.stream import StartedStream, started_stream
from cadence.media.chat_parts import split_media
from cadence.media.fetch.reader import MediaData, open_reader
from cadence.media.io_options import sampling_of
from cadence.media.processor_kwargs import checked_kwargs
from cadence.text.chat_template import ChatRequest
from cadence.text.service.text_jobs import Kept
from cadence.text.service.text_service import Encoding, TextTokens

if TYPE_CHECKING:
    from cadence.entrypoints.async_llm import AsyncLLM

LONG_TEXT = 4096  # characters; a shorter one is read at once: on the event loop


class ChatRun:
    """An answer as far as it has come."""

    def __init__(self, job: ChatJob) -> None:
        self.job = job
        self.choices: list[Choice] = []
        self.completion_tokens = 0

    async def read(self, output: RequestOutput) -> list[ChatEvent]:
        """Long texts, of answers that come whole, in a thread: some are read several times to tell calls from words."""
        events: list[ChatEvent] = []
        for completion in output.outputs:
            self.completion_tokens += len(completion.token_ids)
            self.job.record(completion.token_ids)
            read = self.choices[completion.index].read
            is_long = len(completion.text) > LONG_TEXT
            events += _ending(await asyncio.to_thread(read, completion) if is_long else read(completion))
        return events

    def read_text(self, index: int, text: str, token_ids: Sequence[int]) -> list[ChatEvent]:
        """As `read`, of nothing but text of one choice."""
        self.completion_tokens += len(token_ids)
        self.job.record(token_ids)
        return self.choices[index].read(CompletionOutput(index, text, token_ids))


class ChatEngine:
    def __init__(self, llm: AsyncLLM, options: ServeOptions, tables: FormatTables) -> None:
        self._llm = llm
        self._options = options
        self._media = MediaService(open_reader(llm.config.intake))
        self._placeholders = dict(llm.inputs.placeholders)  # by the kinds of media that the model sees
        self._template = read_template(options.chat_template or llm.config.tokenizer.chat_template)
        if llm.config.tokenizer.escape_control_tokens:
            llm.texts.check_template(self._template)
        templates, special = _templates_and_special(llm, self._template)
        self._formats = choose_formats(options, tables, llm.config.model.files.name, templates, special)

    def split_media(
        self,
        messages: Sequence[Mapping[str, Any]],
        io_kwargs: Mapping[str, Any] | None = None,
        processor: Mapping[str, Any] | None = None,
    ) -> tuple[list[dict[str, Any]], PendingMedia]:
        """The messages without what their parts show, and that; what this model cannot see is refused."""
        cleaned, parts = split_media(messages, self._placeholders)
        return cleaned, PendingMedia(parts, sampling_of(io_kwargs, self._media.sampling), checked_kwargs(processor))

    @property
    def separates_reasoning(self) -> bool:
        """Whether reasoning is parsed out of answers."""
        return self._formats.reasoning is not None

    def run(self, job: ChatJob) -> AsyncGenerator[ChatEvent, None]:
        return self.events(ChatRun(job))

    async def events(self, run: ChatRun) -> AsyncGenerator[ChatEvent, None]:
        """The answer to a job. What is wrong with it raises before the first event; closing ends the request.

        A choice without the tool call that `tool_choice` demands ends with `MISSING_CALL`.
        """
        job = run.job
        prompt, params = await self.prepare(job)
        reading = await self._reading(job)
        run.choices = [self._choice(index, job, prompt["prompt"], reading) for index in range(params.n)]
        last, token_ids = None, prompt["prompt_token_ids"]
        async with aclosing(await self._outputs(prompt, params, job)) as outputs:
            async for output in outputs:
                if last is None:
                    _check_first(output)
                    token_ids = _prompt_ids(output, prompt, job)
                    yield PromptRead(token_ids, output.prompt_logprobs, prompt["prompt"])
                last = output
                for event in await run.read(output):
                    yield event
        cached = last.num_cached_tokens or 0 if last is not None else 0
        reasoning = await self._count_reasoning(run.choices)
        yield Usage(len(token_ids), run.completion_tokens, cached, reasoning)

    async def prepare(self, job: ChatJob) -> tuple[TokensPrompt, SamplingParams]:
        """The prompt and how the model goes on from it."""
        self._check(job)
        await self._llm.texts.turns.enter()
        prompt = await self.prompt(job)
        params = await self._params(job, prompt["prompt"])
        self._check_room(job, len(prompt["prompt_token_ids"]))
        return prompt, params

    async def prompt(self, job: ChatJob) -> TokensPrompt:
        """The prompt a job's messages become. Templates write the special tokens themselves: none are added unless
        the request wants them twice."""
        kept = job.truncation.kept(self._llm.config.model.max_model_len, job.params.max_tokens)
        tokens = await self._tokens(job, kept)
        text = tokens.text
        if len(tokens.ids) < tokens.total:
            text = await self._llm.texts.decode(tokens.ids, skip_special_tokens=False)
        return {
            "prompt": text,
            "prompt_token_ids": tokens.ids,
            "cache_salt": job.cache_salt,
            "tenant": job.tenant,
            "data_parallel_rank": job.data_parallel_rank,
        }

    async def count(self, job: ChatJob) -> int:
        """Tokens of the prompt, however long it is; of each medium no more than its placeholder."""
        return (await self._tokens(job, (0, 0))).total

    async def count_all(self, job: ChatJob) -> int:
        """Tokens of a prompt that the engine takes, with those that stand for its media."""
        prompt = await self.prompt(job)
        if job.media.is_empty:
            return len(prompt["prompt_token_ids"])
        async with self._media.opened(job.media) as data:
            try:
                prepared = await self._llm.inputs.prepared(with_media(prompt, media_fields(data, job.media.beside)))
            except InvalidRequestError as error:
                raise as_sent(error, {**job.sent_names, **job.media.names()}) from None
        return len(prepared.token_ids or ())

    async def _tokens(self, job: ChatJob, kept: Kept) -> TextTokens:
        hidden = job.tool_choice == "none" and self._options.exclude_tools_when_tool_choice_none
        chat = ChatRequest(
            messages=self._messages(job),
            tools=None if hidden else list(job.tools) or None,
            add_generation_prompt=job.add_generation_prompt,
            continue_final_message=job.continue_final_message,
            content_format=self._options.chat_template_content_format,
            kwargs={**self._options.default_chat_template_kwargs, **job.template_kwargs},
            placeholders=self._placeholders,
        )
        template, trusted = (job.chat_template, False) if job.chat_template else (self._template, True)
        how = Encoding(job.add_special_tokens, kept, job.messages_field)
        return await self._llm.texts.chat(chat, how, template, trusted)

    def _messages(self, job: ChatJob) -> Sequence[Mapping[str, Any]]:
        """A thought that goes on is written as the model writes it: after its mark, and not closed."""
        mark = self._thought_mark(job)
        if not mark:
            return job.messages
        *before, last = job.messages
        space = "" if mark.endswith("|>") else "\n"
        return [*before, {"role": "assistant", "content": f"{mark}{space}{last.get('reasoning_content', '')}"}]

    def _thought_mark(self, job: ChatJob) -> str:
        """What begins the thought that the model goes on with; "" = it goes on with none."""
        format = self._formats.reasoning
        return format.open[0] if job.continue_thought and format is not None and format.open else ""

    def _check(self, job: ChatJob) -> None:
        options = self._options
        if job.chat_template and not options.trust_request_chat_template:
            raise InvalidRequestError(
                "this server takes no chat template from requests; start it with --trust-request-chat-template",
                "chat_template",
            )
        if job.tool_choice == "auto" and self._formats.tools is None:
            raise InvalidRequestError(
                "tool_choice is auto, and the chat template of this model does not show how it writes tool calls; "
                "start the server with --tool-call-parser NAME, or send tool_choice: required or none",
                "tool_choice",
            )

    def _check_room(self, job: ChatJob, num_prompt: int) -> None:
        try:
            check_room(num_prompt, job.max_output, self._llm.config.model.max_model_len)
        except InvalidRequestError as error:
            raise as_sent(error, job.sent_names) from None

    async def _params(self, job: ChatJob, prompt: str) -> SamplingParams:
        """Some formats are written with special tokens, which must then be in the text."""
        params = await self._with_budget(job, prompt)
        if params.skip_special_tokens and self._formats.needs_special_tokens(self._calls_tools(job)):
            params = params.clone()
            params.skip_special_tokens = False
        constraint = await self._constraint(job, prompt)
        if constraint is not params.structured_outputs and job.beam is None:
            params = params.clone()
            params.structured_outputs = constraint
        return params

    async def _with_budget(self, job: ChatJob, prompt: str) -> SamplingParams:
        """How much reasoning there may be: as the request says, and so much that a demanded call has room."""
        params, format = job.params, self._formats.reasoning
        asked = budget = params.thinking_token_budget
        if self._demanded(job) and job.beam is None:
            budget = budget_before_calls(asked, params.max_tokens)
        if budget is None or format is None:
            return params
        ids = await thinking_ids(format, prompt, self._llm.texts)
        params = params.clone()
        params.thinking_token_ids, params.thinking_token_budget = ids, budget if ids is not None else asked
        return params

    async def _constraint(self, job: ChatJob, prompt: str) -> StructuredOutputsParams | None:
        """Where it has to be made, in a thread: schemas are walked over."""
        if not job.tools and job.params.structured_outputs is None:
            return None
        return await asyncio.to_thread(constraint_of, job, self._formats, self._thought_mark(job) or prompt)

    async def _reading(self, job: ChatJob) -> CallReading:
        if not self._calls_tools(job):
            return NO_CALLS
        return await asyncio.to_thread(self._formats.reading, job.tools, bool(self._demanded(job)))

    def _calls_tools(self, job: ChatJob) -> bool:
        return bool(job.tools) and job.tool_choice != "none"

    def _demanded(self, job: ChatJob) -> str:
        """ "" when the model is free to call, "required", or the name of the function it must call."""
        return job.tool_choice if self._calls_tools(job) and job.tool_choice != "auto" else ""

    async def _outputs(
        self, prompt: TokensPrompt, params: SamplingParams, job: ChatJob
    ) -> StartedStream[RequestOutput]:
        """The engine knows of no messages: what is wrong with the prompt is wrong with them, and shows at once. Media
        are here until the first output has come."""
        async with self._media.opened(job.media) as data:
            try:
                whole = await self._prepared(prompt, data, job) if data else prompt
                return await self._begun(whole, params, job)
            except InvalidRequestError as error:
                raise as_sent(error, {**job.sent_names, **job.media.names()}) from None

    async def _prepared(self, prompt: TokensPrompt, data: MediaData, job: ChatJob) -> ParsedPrompt:
        """With the tokens that stand for its media, after which the client's own limit must fit, too."""
        prepared = await self._llm.inputs.prepared(with_media(prompt, media_fields(data, job.media.beside)))
        self._check_room(job, len(prepared.token_ids or ()))
        return prepared

    async def _begun(
        self, prompt: TokensPrompt | ParsedPrompt, params: SamplingParams, job: ChatJob
    ) -> StartedStream[RequestOutput]:
        if job.beam is not None:
            given = {"skip_special_tokens": params.skip_special_tokens, **job.of_adapter}
            outputs = self._llm.beam_search(prompt, job.beam, job.request_id, priority=job.priority, **given)
        else:
            whole = resumed(prompt, job.told_tokens) if job.told_tokens else prompt
            outputs = self._llm.generate(whole, params, job.request_id, priority=job.priority, **job.of_adapter)
        return await started_stream(cast(AsyncGenerator[RequestOutput, None], outputs))

    def _choice(self, index: int, job: ChatJob, prompt: str, reading: CallReading) -> Choice:
        formats = self._formats
        calls = self._calls_tools(job)
        if not calls and formats.reasoning is None:
            return PlainChoice()
        before = self._thought_mark(job) or prompt
        demanded = self._demanded(job)
        parser = formats.parser(reading, before, job.stream)
        return ParsedChoice(index, parser, demanded, formats.new_id(job.id_seed))

    async def _count_reasoning(self, choices: list[Choice]) -> int:
        """Tokens of reasoning, counted off its text: tags, and tokens that hold both, belong to neither side."""
        texts = [choice.reasoning for choice in choices if choice.reasoning]
        how = Encoding(add_special_tokens=False, kept=(0, 0))  # only their number counts
        return sum([(await self._llm.texts.encode(text, how)).total for text in texts])


def _prompt_ids(output: RequestOutput, prompt: TokensPrompt, job: ChatJob) -> Sequence[int]:
    """With those that stand for its media, which the engine puts in."""
    return (job.media.places and output.prompt_token_ids) or prompt["prompt_token_ids"]


def _check_first(output: RequestOutput) -> None:
    """A request that fails before its first token is answered with a status of its own, also where it streams."""
    for completion in output.outputs:
        if completion.finish_reason is not None and not completion.token_ids:
            raise_failure(completion)


def _templates_and_special(llm: AsyncLLM, template: str) -> tuple[list[str], set[str]]:
    """The chat templates that may be used, and the texts of the special tokens."""
    templates: list[str] = []
    special: set[str] = set()
    with suppress(InvalidRequestError):  # without a tokenizer there are no chats
        tokenizer = llm.tokenizer
        special = {tokenizer.added_token_ids[token_id] for token_id in tokenizer.skipped_ids}
        for has_tools in (True, False):  # a model may have no template
            templates.append(tokenizer.pick_template(template, has_tools))
    return templates, special


_LAST: dict[type, type] = {TextDelta: LastText, ReasoningDelta: LastReasoning, ToolCallDelta: LastToolCall}


def _ending(events: list[ChatEvent]) -> list[ChatEvent]:
    """Marks what is said right before the end of a choice."""
    if len(events) > 1 and type(events[-1]) is ChoiceEnd:
        said = events[-2]
        events[-2] = _LAST[type(said)](**{field.name: getattr(said, field.name) for field in fields(said)})
    return events
