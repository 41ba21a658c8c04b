"""Recordings to text with Whisper: Cadence, transformers and faster-whisper, each in a process of its own, by turns.

    python -m benchmarks.speech --model FOLDER --ct2 FOLDER --recording FILE [--peer-path FOLDER] [--out FILE]

FOLDER of --ct2 is the model as CTranslate2 has it, that of --model what benchmarks/whisper_from_ct2.py makes of it.
Work: the recording, and eight at once (it without its first 0, 0.1, ... 0.7 seconds). All are greedy, with times, with
the text before as context. Of a peer's ways to do eight, the best counts. Prints a JSON line
per engine and work, and appends them to FILE.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import io
import json
import sys
import wave
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import turns
from benchmarks.names import names_of

RATE = 16_000
_SHIFT = 1_600  # samples that each recording has less than the one before
_AT_ONCE = 8
_CADENCE: dict[str, dict[str, str]] = {
    "cadence-float32": {"dtype": "float32"},
    "cadence-bfloat16": {"dtype": "bfloat16"},
    "cadence-int8": {"quantization": "int8"},
}
_FASTER = {"faster-whisper-float32": "float32", "faster-whisper-int8": "int8"}
ENGINES = (*_CADENCE, "transformers-float32", *_FASTER)
WORKS = ("one", "eight")

Recordings = list[np.ndarray]  # samples [n] float32 each
Transcribe = Callable[[Recordings], list[str]]


def cadence_ways(engine: str, args: argparse.Namespace) -> dict[str, Transcribe]:
    from cadence.config.args import EngineArgs
    from cadence.entrypoints.async_llm import AsyncLLM
    from cadence.entrypoints.speech.events import Transcript
    from cadence.entrypoints.speech.open import open_speech
    from cadence.entrypoints.speech.requests import SpeechRequest, TranscriptionParams

    loop = asyncio.new_event_loop()
    llm = loop.run_until_complete(AsyncLLM.start(EngineArgs(model=args.model, **_CADENCE[engine])))
    speech = open_speech(llm, lambda said: None)

    async def one(number: int, samples_np: np.ndarray) -> str:
        file, request = _wav(samples_np), SpeechRequest(f"recording-{number}")
        params = TranscriptionParams(language=args.language)
        found = [event async for event in speech.events(lambda: file, params, request)]
        assert isinstance(found[-1], Transcript)
        return found[-1].text

    async def every(recordings: Recordings) -> list[str]:
        await llm.reset_prefix_cache()  # what encoders have read is cached by content
        return list(await asyncio.gather(*(one(*pair) for pair in enumerate(recordings))))

    return {"": lambda recordings: loop.run_until_complete(every(recordings))}


def _wav(samples_np: np.ndarray) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(RATE)
        writer.writeframes((samples_np * 2**15).astype("<i2").tobytes())
    return file.getvalue()


def transformers_ways(args: argparse.Namespace) -> dict[str, Transcribe]:
    import torch
    import transformers

    tokenizer = transformers.WhisperTokenizerFast(tokenizer_file=f"{args.model}/tokenizer.json")
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(args.model)
    options = {"dtype": torch.float32}
    model = transformers.WhisperForConditionalGeneration.from_pretrained(args.model, **options).eval()

    spoken = {"language": args.language, "task": "transcribe"} if args.language else {}

    @torch.inference_mode()
    def together(recordings: Recordings) -> list[str]:
        features = extractor(
            recordings,
            sampling_rate=RATE,
            return_tensors="pt",
            truncation=False,
            padding="longest",
            return_attention_mask=True,
        )
        found = model.generate(
            **features, **spoken, return_timestamps=True, condition_on_prev_tokens=True, do_sample=False
        )
        return [tokenizer.decode(tokens, skip_special_tokens=True) for tokens in found]

    return {
        "together": together,
        "one by one": lambda recordings: [text for each in recordings for text in together([each])],
    }


def faster_ways(engine: str, args: argparse.Namespace) -> dict[str, Transcribe]:
    sys.path.insert(0, args.peer_path)
    package = importlib.import_module("faster_whisper")

    def opened(workers: int) -> Transcribe:
        model = package.WhisperModel(
            args.ct2,
            device="cpu",
            compute_type=_FASTER[engine],
            cpu_threads=max(args.threads // workers, 1),
            num_workers=workers,
        )

        def one(samples_np: np.ndarray) -> str:
            segments, _ = model.transcribe(samples_np, beam_size=1, language=args.language or None)
            return "".join(segment.text for segment in segments)

        def every(recordings: Recordings) -> list[str]:
            with ThreadPoolExecutor(workers) as threads:
                return list(threads.map(one, recordings))

        return every

    return {"one by one": opened(1), f"{args.threads} workers": opened(args.threads)}


def ways_of(engine: str, args: argparse.Namespace) -> dict[str, Transcribe]:
    importlib.import_module("torch").set_num_threads(args.threads)
    if engine in _CADENCE:
        return cadence_ways(engine, args)
    return faster_ways(engine, args) if engine in _FASTER else transformers_ways(args)


def works(recording: Path) -> dict[str, Recordings]:
    """recording: a file of 16 bits and one channel, whose rate is a multiple of RATE"""
    decode = importlib.import_module("cadence.audio.decode").decode_audio
    samples_np = decode(recording.read_bytes())
    return {"one": [samples_np], "eight": [samples_np[_SHIFT * number :] for number in range(_AT_ONCE)]}


def serve(engine: str, args: argparse.Namespace) -> None:
    ways, work = ways_of(engine, args), works(args.recording)
    for transcribe in ways.values():
        transcribe([work["one"][0][: 31 * RATE]])

    def run(name: str, way: str) -> Callable[[], None]:
        return lambda: _show(ways[way](work[name]), work[name])

    several = list(ways)
    turns.serve({"one": {several[0]: run("one", several[0])}, "eight": {way: run("eight", way) for way in several}})


def _show(texts: list[str], recordings: Recordings) -> None:
    print("heard " + json.dumps(texts), file=sys.stderr, flush=True)
    for text, samples_np in zip(texts, recordings, strict=True):
        if len(text.split()) < len(samples_np) / RATE:
            raise SystemExit("less than a word a second was heard: this is no transcript to measure")


def compare(args: argparse.Namespace) -> list[dict[str, Any]]:
    passed = [f"--{name}={getattr(args, name.replace('-', '_'))}" for name in _PASSED]
    command = [sys.executable, "-m", "benchmarks.speech", *passed, "--serve"]
    engines = [turns.EngineProcess(engine, [*command, engine]) for engine in args.engines]
    for work in args.works:
        for _ in range(args.rounds):
            for engine in engines:
                engine.turn(work)
    for engine in engines:
        engine.end()
    lengths = {name: sum(map(len, found)) / RATE for name, found in works(args.recording).items()}
    return [_line(engine, work, lengths[work]) for work in args.works for engine in engines]


def _line(engine: turns.EngineProcess, work: str, length: float) -> dict[str, Any]:
    way, taken = engine.best(work)
    rate = {"seconds": round(taken, 2), "times_real_time": round(length / taken, 1)}
    return {"work": work, "engine": engine.engine, "way": way, **rate}


_PASSED = ("model", "ct2", "recording", "peer-path", "language", "threads")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--ct2", required=True)
    parser.add_argument("--recording", type=Path, required=True)
    parser.add_argument("--peer-path", default=".", help="a folder that holds the package faster_whisper")
    parser.add_argument("--engines", type=names_of(ENGINES), default=",".join(ENGINES))
    parser.add_argument("--works", type=names_of(WORKS), default=",".join(WORKS))
    parser.add_argument("--language", default="en", help="that is spoken; empty for models of English alone")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve", help=argparse.SUPPRESS)  # one engine, for the process that compares them
    args = parser.parse_args()
    if args.serve:
        serve(args.serve, args)
        return
    turns.report(compare(args), args.model, args.out)


if __name__ == "__main__":
    main()
