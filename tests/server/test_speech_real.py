"""/v1/audio of a real server with a tiny Whisper: the same words in any company, bad recordings beside good ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest

from cadence import LLM, SamplingParams
from tests.helpers.processes import family_of, resident_bytes
from tests.helpers.recordings import encoded, tone, wav_file
from tests.helpers.tiny_whisper import DECODER, make_whisper
from tests.server.helpers import ServerProcess

pytestmark = [pytest.mark.engine, pytest.mark.warm]

FLAGS = ("--dtype", "float32", "--served-model-name", "tiny", "--max-audio-seconds", "120")
GOOD = {
    "low": wav_file(tone(3.0, hertz=90.0)),
    "high": encoded("flac", tone(2.0, hertz=2_000.0)),
    "noise": wav_file(np.random.default_rng(1).uniform(-0.3, 0.3, 20_000).astype(np.float32)),
}
BAD = {
    "empty": b"",
    "no audio": b"%PDF-1.7 and so on, long enough to be looked at",
    "one sample": wav_file(tone(1 / 16_000)),
    "cut short": wav_file(tone(1.0))[:-8_000],
    "more than is there": wav_file(tone(1.0), size=2**31),
    "0 Hz": wav_file(tone(1.0), rate=0),
    "not a number": wav_file(np.full(16_000, np.nan, np.float32), code=3, bits=32),
}
MB = 2**20
LIVE_S = 0.25  # of /livez, on a machine of its own


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_whisper(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[ServerProcess]:
    with ServerProcess(directory, *FLAGS) as running:
        yield running


def post(server: ServerProcess, content: bytes, **fields: str) -> httpx.Response:
    data = {"language": "en", "response_format": "verbose_json", **fields}
    return httpx.post(f"{server.url}/v1/audio/transcriptions", data=data, files={"file": ("a", content)}, timeout=240)


def words(answer: httpx.Response) -> object:
    assert answer.status_code == 200, answer.text
    return [(one["tokens"], one["start"], one["end"], one["avg_logprob"]) for one in answer.json()["segments"]]


def test_recordings_say_together_what_each_says_alone(server: ServerProcess) -> None:
    alone = {name: words(post(server, content)) for name, content in GOOD.items()}
    assert len({str(said) for said in alone.values()}) > 1
    with ThreadPoolExecutor(3) as pool:
        asked = {name: pool.submit(post, server, GOOD[name]) for name in GOOD}
        assert all(words(answer.result()) == alone[name] for name, answer in asked.items())


def test_audio_and_text_of_one_engine_are_what_each_is_alone(directory: Path) -> None:
    """A transcript's beginning, one after a text, and a text that goes on where there was nothing to hear."""
    llm = LLM(str(directory), dtype="float32", max_num_seqs=4)
    sound, silence = (tone(1.0, hertz=300.0), 16_000), (np.zeros(16_000, np.float32), 16_000)
    start = "<|startoftranscript|><|en|><|transcribe|>"
    prompts = [
        {"prompt": start, "multi_modal_data": {"audio": sound}},
        {"prompt": f"<|startofprev|> the dog{start}", "multi_modal_data": {"audio": sound}},
        {"encoder_prompt": {"prompt": "", "multi_modal_data": {"audio": silence}}, "decoder_prompt": "the dog ran"},
    ]
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=DECODER // 2, ignore_eos=True, logprobs=0)
    together = [output.outputs[0] for output in llm.generate(prompts, params, use_tqdm=False)]
    for prompt, wanted in zip(prompts, together, strict=True):
        llm.reset_prefix_cache()
        (alone,) = llm.generate([prompt], params, use_tqdm=False)
        assert list(alone.outputs[0].token_ids) == list(wanted.token_ids)
        assert alone.outputs[0].cumulative_logprob == wanted.cumulative_logprob
    assert len({tuple(each.token_ids) for each in together}) == 3


def ten_hours() -> bytes:
    """At 1,000 samples a second, as its head has it."""
    flac = encoded("flac", np.zeros(10 * 3600 * 1_000, np.float32))
    return flac[:18] + ((1_000 << 44) | (15 << 36) | (10 * 3600 * 1_000)).to_bytes(8, "big") + flac[26:]


@pytest.mark.wide
def test_bad_recordings_disturb_nobody(server: ServerProcess) -> None:
    """Each of them four times at once, while others are served; prints how long /livez took and what memory grew by."""
    wanted, contents = words(post(server, GOOD["low"])), {**BAD, "ten hours": ten_hours()}
    family = family_of(server.process.pid)
    before = resident_bytes(family)
    most, slowest, is_over = 0, 0.0, threading.Event()

    def watch() -> None:
        nonlocal most, slowest
        with server.client() as client:
            while not is_over.wait(0.02):
                begins = time.monotonic()
                assert client.get("/livez").status_code == 200
                slowest = max(slowest, time.monotonic() - begins)
                most = max(most, resident_bytes(family))

    watcher = threading.Thread(target=watch)
    watcher.start()
    with ThreadPoolExecutor(8) as pool:
        bad = {(name, turn): pool.submit(post, server, contents[name]) for turn in range(4) for name in contents}
        good = [pool.submit(post, server, GOOD["low"]) for _ in range(3)]
        refused = {key: answer.result() for key, answer in bad.items()}
        assert all(words(answer.result()) == wanted for answer in good)
    is_over.set()
    watcher.join()
    for (name, _), answer in refused.items():
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "file"), f"{name}: {answer.text}"
    print(f"/livez took at most {slowest * 1000:.0f} ms; memory grew by {(most - before) / MB:.0f} MiB")
    assert slowest < 4 * LIVE_S and most - before < 256 * MB
