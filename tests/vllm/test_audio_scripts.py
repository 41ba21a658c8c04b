"""Scripts for vLLM that transcribe: audio in the prompt, in both of its forms, and recordings by their names there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cadence.audio.decode import RATE, decode_audio
from cadence.core.errors import ModelNotFoundError
from tests.arch.source import ROOT
from tests.helpers.recordings import encoded, tone, wav_file
from tests.helpers.tiny_whisper import make_whisper

pytestmark = pytest.mark.warm

SCRIPT = """
import sys
from vllm import LLM, SamplingParams
from vllm.assets.audio import AudioAsset
from vllm.inputs import ExplicitEncoderDecoderPrompt

llm = LLM("org/whisper", max_model_len=48, max_num_seqs=2, limit_mm_per_prompt={"audio": 1}, dtype="float32")
first, second = (AudioAsset(name).audio_and_sample_rate for name in ("mary_had_lamb", "winning_call"))
prompts = [
    {"prompt": "<|startoftranscript|>", "multi_modal_data": {"audio": first}},
    ExplicitEncoderDecoderPrompt(
        encoder_prompt={"prompt": "", "multi_modal_data": {"audio": second}},
        decoder_prompt="<|startoftranscript|>",
    ),
    {"encoder_prompt": {"prompt": "", "multi_modal_data": {"audio": first}}, "decoder_prompt": "<|startoftranscript|>"},
]
params = SamplingParams(temperature=0, top_p=1.0, max_tokens=8, ignore_eos=True)
told = [list(output.outputs[0].token_ids) for output in llm.generate(prompts, params)]
print([len(tokens) for tokens in told], told[0] == told[2], told[0] != told[1])
"""


@pytest.mark.engine
def test_a_script_for_whisper_runs_as_it_is(tmp_path: Path) -> None:
    model = make_whisper(tmp_path / "whisper")
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "mary_had_lamb.ogg").write_bytes(encoded("ogg", tone(1.0, 48_000)))
    (tmp_path / "assets" / "winning_call.wav").write_bytes(wav_file(tone(2.0, hertz=90.0)))
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "cadence.vllm", "--model-map", f"org/whisper={model}", "script.py"]
    variables = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "VLLM_ASSETS_CACHE": str(tmp_path / "assets")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path, env=variables)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[8, 8, 8] True True"
    assert "limit_mm_per_prompt" not in done.stderr


def test_recordings_are_found_where_they_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cadence.vllm.asset_files import AudioAsset

    monkeypatch.delenv("VLLM_ASSETS_CACHE", raising=False)
    monkeypatch.setenv("CADENCE_CACHE", str(tmp_path))
    content = wav_file(tone(0.5, 8_000), 8_000)
    path = tmp_path / "assets" / "vllm_public_assets" / "mine.wav"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    asset = AudioAsset("mine")
    samples_np, rate = asset.audio_and_sample_rate
    assert asset.get_local_path() == path and rate == RATE
    assert samples_np.tolist() == decode_audio(content).tolist()
    with pytest.raises(ModelNotFoundError, match=r"assets/winning_call\.ogg is not there, and nothing is fetched"):
        AudioAsset("winning_call").get_local_path()
