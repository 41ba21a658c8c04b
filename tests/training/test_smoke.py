"""A head is trained as it drafts: the same drafts from its files, in every round, and its loss falls."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from cadence import LLM
from cadence.kernels.reference.gumbel import gumbel_noise
from tests.helpers.draft_rounds import drafts_kept
from tests.helpers.drafting import DraftedSequence
from tests.helpers.head_layouts import Target as OurTarget
from tests.helpers.oracle import greedy, load_oracle
from tests.helpers.tiny_heads import Tensors, decoder_layer, rms
from tests.helpers.tiny_models import MAX_LEN, VOCAB
from training.evaluate import accepted, evaluate
from training.head import Head, default_aux_layers, new_head
from training.lines import Lines, endless, pack
from training.prompts import prompts
from training.target import Target, load_target
from training.texts import Text, Texts
from training.train import Trainer, new_optimizer, step_once
from training.write_texts import Conversation, Writer, write_texts

pytestmark = pytest.mark.engine

KNOWN, DRAFTS, LENGTH = 100, 4, 96


@pytest.fixture
def llama(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("llama")


@pytest.fixture
def target(llama: Path) -> Target:
    return load_target(str(llama), torch.device("cpu"), torch.float32)


def random_texts(sizes: list[int], start: int = 10) -> Texts:
    rng = random.Random(3)
    return Texts.of([Text([rng.randrange(3, VOCAB) for _ in range(size)], start) for size in sizes])


def made_head(target: Target, texts: Texts) -> Head:
    torch.manual_seed(0)
    aux_layers = default_aux_layers(target.hf["num_hidden_layers"])
    head = new_head(target, torch.from_numpy(texts.frequent(KNOWN)), aux_layers)
    lines = pack(texts, LENGTH)
    streams, _ = target.states(lines, aux_layers)
    head.scale_streams(streams[lines.answer])
    return head


@torch.no_grad()
def unrolled(head: Head, target: Target, lines: Lines) -> torch.Tensor:
    """[drafts, N, L, draft vocabulary]"""
    streams, _ = target.states(lines, head.aux_layers)
    states = head.states(lines, target.embedding[lines.ids], streams, DRAFTS)
    return torch.stack([head.logits(each) for each in states])


def test_cadence_drafts_from_the_files_what_was_trained(llama: Path, target: Target, tmp_path: Path) -> None:
    head = made_head(target, random_texts([40, 50]))
    head.save(tmp_path, torch.float32)
    ours = OurTarget(llama)
    loaded = ours.head("eagle3", tmp_path)
    assert torch.equal(loaded.vocabulary.target_ids, head.ids)
    prompt = random_texts([40]).ids.tolist()
    for end in (25, 40):  # a prompt, and more of the text
        both = DraftedSequence(ours.model, loaded)
        both.feed(prompt[:end])
        drafts, logits = both.propose(17, DRAFTS)
        lines = pack(Texts.of([Text([*prompt[:end], 17, *drafts], 1)]), LENGTH)
        found = unrolled(head, target, lines)[:, 0]
        expected = torch.stack([found[draft, end - 1 + draft] for draft in range(DRAFTS)])
        torch.testing.assert_close(logits, expected, atol=2e-4, rtol=1e-3)
        assert drafts == head.ids[expected.argmax(-1)].tolist()


@torch.no_grad()
def one_round(w: Tensors, head: Head, target: Target, ids: torch.Tensor, streams: torch.Tensor, at: int) -> list:
    """Drafts one by one, each over all that the head has computed in this round; the target knows tokens up to `at`."""
    hidden, lines = streams[: at + 1] @ w["fc.weight"].T, []
    for draft in range(DRAFTS):
        normed = rms_of(w, "midlayer.hidden_norm", hidden, head)
        embeds = rms_of(w, "midlayer.input_layernorm", target.embedding[ids[1 : at + 2 + draft]], head)
        out = decoder_layer(w, "midlayer.", normed, torch.cat([embeds, normed], dim=-1))
        lines.append(rms_of(w, "norm", out[-1:], head)[0] @ w["lm_head.weight"].T)
        hidden = torch.cat([hidden, out[-1:]])
    return lines


def rms_of(w: Tensors, name: str, x: torch.Tensor, head: Head) -> torch.Tensor:
    assert head.config["rms_norm_eps"] == pytest.approx(1e-6)
    return rms(x, w[f"{name}.weight"])


def test_every_draft_in_training_is_the_one_of_its_round(target: Target, tmp_path: Path) -> None:
    """Of two texts in one line, at every position."""
    texts = random_texts([30, 37])
    head = made_head(target, texts)
    head.save(tmp_path, torch.float32)
    w = load_file(tmp_path / "model.safetensors")
    lines = pack(texts, LENGTH)
    assert len(lines) == 1
    found = unrolled(head, target, lines)[:, 0]
    for first, end in texts.spans():
        ids = torch.from_numpy(texts.ids[first:end]).long()
        alone = pack(Texts.of([Text(ids.tolist(), 10)]), len(ids))
        streams = target.states(alone, head.aux_layers)[0][0]
        for at in range(len(ids) - 1 - DRAFTS):
            expected = torch.stack(one_round(w, head, target, ids, streams, at))
            unrolled_round = torch.stack([found[draft, first + at + draft] for draft in range(DRAFTS)])
            torch.testing.assert_close(unrolled_round, expected, atol=2e-4, rtol=1e-3)


def test_drafts_that_count_are_those_that_decoding_makes() -> None:
    lines = pack(random_texts([14, 16], start=10), 32)
    for draft in range(3):
        places = lines.drafted(draft)[0].nonzero()[:, 0].tolist()
        # rounds begin at the last token of a prompt, and the last draft is for the last token of the text
        assert places == [*range(9 + draft, 12), *range(14 + 9 + draft, 14 + 14)]


def test_loss_falls(target: Target) -> None:
    texts = random_texts([40, 50, 60])
    trainer = Trainer(made_head(target, texts), target, DRAFTS)
    optimizer = new_optimizer(trainer.head, 1e-3)
    batches = endless(pack(texts, LENGTH), 2, seed=0)
    results = [step_once(trainer, optimizer, next(batches), 5e-3) for _ in range(20)]
    assert results[-1].loss < 0.8 * results[0].loss
    assert (results[-1].right > results[0].right + 0.1).all()


def test_texts_are_drawn_with_the_noise_that_drafts_get(llama: Path, target: Target) -> None:
    """The target's likeliest token with that noise is the one it chose."""
    with LLM(str(llama), max_model_len=MAX_LEN) as llm:
        asked = [Conversation(("to be or not to be", "one two"), 1.0, seed) for seed in (5, 6)]
        texts = write_texts(Writer(llm, 256, 20), [*asked, Conversation(("a token",), 0.0, 7)], float("inf"))
    assert len(texts) == 5 and [text.temperature for text in texts] == [1.0, 1.0, 0.0, 1.0, 1.0]
    oracle = load_oracle(llama)
    for text in texts:
        assert 0 < text.start < len(text.ids)
        positions = torch.arange(text.start, len(text.ids))
        with torch.inference_mode():
            logits = oracle(torch.tensor([text.ids])).logits[0, positions - 1]
        if text.temperature:
            logits = logits + gumbel_noise(torch.full_like(positions, text.seed), positions, VOCAB)
        assert logits.argmax(-1).tolist() == text.ids[text.start :]
    found = evaluate(made_head(target, random_texts([60])), target, Texts.of(texts), 256)
    assert set(found) == {"temperature 0", "temperature 1"}


def test_as_many_drafts_are_kept_as_in_drafting(llama: Path, target: Target, tmp_path: Path) -> None:
    """By a head that has seen the text a few times, so that it is right here and wrong there."""
    prompt, oracle = random_texts([10]).ids.tolist(), load_oracle(llama)
    texts = Texts.of([Text([*prompt, *greedy(oracle, prompt, 60)], len(prompt))])
    trainer = Trainer(made_head(target, texts), target, DRAFTS)
    optimizer, batches = new_optimizer(trainer.head, 1e-3), endless(pack(texts, LENGTH), 1, seed=0)
    for _ in range(8):
        step_once(trainer, optimizer, next(batches), 4e-3)
    trainer.head.save(tmp_path, torch.float32)
    ours = OurTarget(llama)
    kept = drafts_kept(DraftedSequence(ours.model, ours.head("eagle3", tmp_path)), prompt, 59, 4)
    found = evaluate(Head.load(tmp_path), target, texts, LENGTH)["temperature 0"]["k=4"]
    assert (found["rounds"], found["accepted"]) == (len(kept), round(sum(kept) / len(kept), 4))
    assert 0.2 < found["accepted"] < 3.5


def test_rounds_keep_drafts_until_the_first_wrong_one() -> None:
    right = np.zeros((3, 12), dtype=bool)
    right[0, 3] = right[1, 4] = True  # the round at 3 keeps two drafts, the third is wrong
    right[1, 7] = True  # draft 1 of the round at 6, whose draft 0 is wrong
    right[:, 9:] = True
    assert accepted(right, start=4, most=3) == [2, 0, 0, 0, 1]
    assert accepted(right, start=4, most=1) == [1, 0, 0, 0, 0, 1]
    assert accepted(np.ones((3, 12), dtype=bool), start=4, most=3) == [3, 3]


def test_prompts_are_many_and_the_held_out_ones_are_others() -> None:
    made, held_out = prompts(8000), prompts(300, held_out=True)
    assert len(set(made)) == 8000 and not set(made) & set(held_out)
    assert made == prompts(8000) and made[:50] != prompts(50, seed=1)
    assert any(len(turns) > 1 for turns in held_out)
    assert not any("{" in turn for turns in made for turn in turns if "JSON" not in turn)
