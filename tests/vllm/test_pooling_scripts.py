"""Scripts that embed, classify, score and reward, as they are written for vLLM."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.helpers.tiny_models import make_tiny
from tests.helpers.tiny_scorers import make_headed, make_reward
from tests.vllm.test_names import run

pytestmark = [pytest.mark.engine, pytest.mark.warm]

SCRIPT = """
import json
from argparse import Namespace

from vllm import LLM, EngineArgs, PoolingParams
from vllm.config import PoolerConfig
from vllm.outputs import EmbeddingRequestOutput, PoolingRequestOutput
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.utils.print_utils import print_embeddings

PROMPTS = ["the quick brown fox", "12 monkeys"]


def parse_args(model: str, **defaults: object) -> Namespace:
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    parser.set_defaults(model=model, runner="pooling", dtype="float32", max_model_len=256, **defaults)
    return parser.parse_args()


def embed() -> None:
    llm = LLM(**vars(parse_args("org/embedder")))
    outputs = llm.embed(PROMPTS, pooling_params=PoolingParams(normalize=True))
    assert all(isinstance(output, EmbeddingRequestOutput) for output in outputs)
    for output in outputs:
        print_embeddings(output.outputs.embedding, prefix="Embedding")
    (by_token,) = llm.encode(PROMPTS[0], pooling_task="token_embed")
    assert isinstance(by_token, PoolingRequestOutput)
    assert by_token.outputs.data.shape == (len(by_token.prompt_token_ids), outputs[0].outputs.hidden_size)


def classify() -> None:
    llm = LLM(**vars(parse_args("org/classifier")))
    found = [[output.prompt_token_ids, output.outputs.probs] for output in llm.classify(PROMPTS)]
    print(json.dumps({"classify": found}))


def score() -> None:
    pooler_config = PoolerConfig(pooling_type="MEAN")
    llm = LLM(model="org/embedder", runner="pooling", pooler_config=pooler_config, max_model_len=256)
    (output,) = llm.score(PROMPTS[0], PROMPTS[0])
    print(json.dumps({"score": output.outputs.score}))


def score_by_token() -> None:
    llm = LLM(**vars(parse_args("org/embedder", pooler_config=PoolerConfig(task="token_embed"))))
    vectors = [output.outputs.data for output in llm.encode(PROMPTS, pooling_task="token_embed")]
    expected = (vectors[0] @ vectors[1].T).amax(dim=-1).sum()
    (output,) = llm.score(*PROMPTS)
    assert abs(output.outputs.score - expected) < 1e-4


def classify_tokens() -> None:
    llm = LLM(**vars(parse_args("org/tagger")))
    tokenizer, labels = llm.get_tokenizer(), llm.llm_engine.vllm_config.model_config.hf_config.id2label
    (output,) = llm.encode(PROMPTS[:1], pooling_task="token_classify")
    tokens = tokenizer.convert_ids_to_tokens(output.prompt_token_ids)
    predicted = [labels[best.item()] for best in output.outputs.data.argmax(dim=-1)]
    assert len(tokens) == len(predicted) and {*predicted} <= {"LABEL_0", "LABEL_1", "LABEL_2"}
    assert not {*tokens} & {*tokenizer.all_special_tokens}


def reward() -> None:
    llm = LLM(**vars(parse_args("org/reward")))
    (output,) = llm.reward(PROMPTS[:1])
    rewards = output.outputs.data
    print(str(rewards[:2])[:-1] + ", ...")
    print(json.dumps({"reward": [output.prompt_token_ids, rewards.tolist()]}))


if __name__ == "__main__":
    for main in (embed, classify, score, score_by_token, classify_tokens, reward):
        main()
"""


def test_scripts_for_vllm_run_as_they_are(tmp_path: Path) -> None:
    embedder = make_tiny("llama", tmp_path / "embedder")
    classifier = make_headed("llama", tmp_path / "classifier", "AutoModelForSequenceClassification", num_labels=3)
    make_headed("llama", tmp_path / "tagger", "AutoModelForTokenClassification", num_labels=3)
    (tmp_path / "reward").mkdir()
    rewards = make_reward(tmp_path / "reward", "Qwen2ForRewardModel", labels=1)
    (tmp_path / "script.py").write_text(SCRIPT)
    maps = [f"--model-map=org/{name}={tmp_path / name}" for name in ("embedder", "classifier", "tagger", "reward")]
    done = run(*maps, "script.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    size = json.loads((embedder / "config.json").read_text())["hidden_size"]
    assert done.stdout.count(f"(size={size})") == 2
    said = {
        name: value
        for line in done.stdout.splitlines()
        if line.startswith("{")
        for name, value in json.loads(line).items()
    }
    assert said["score"] == pytest.approx(1.0, abs=1e-6)
    with torch.inference_mode():
        for ids, probs in said["classify"]:
            expected = classifier(torch.tensor([ids])).logits[0].softmax(-1)
            assert probs == pytest.approx(expected.tolist(), abs=1e-5)
        ids, values = said["reward"]
        expected = rewards(torch.tensor([ids]))[0]
    assert torch.allclose(torch.tensor(values), expected.sigmoid(), atol=1e-5)
