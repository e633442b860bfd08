"""The parts of experiments that test explanations: the second evaluator, sampling with dropout."""

import math

import pytest
import torch

import cwdfm
from cwdfm.model.presets import preset
from cwdfm.model.transformer import DiT
from experiments.tasks.sample import RewritableMaskSource, WithDropout
from experiments.tasks.trigram import word_perplexity


def test_trigram_perplexity_by_hand() -> None:
    """Punctuation and unknown words separate contexts."""
    seen: list[list[str]] = []

    def log_prob(words: list[str]) -> float:
        seen.append(words)
        return -math.inf if words[0] == "qx" else -float(len(words))

    found = word_perplexity(["A b c d, e", "f qx g"], log_prob)
    assert seen[:5] == [["a"], ["b", "a"], ["c", "b", "a"], ["d", "c", "b"], ["e"]]
    assert seen[5:] == [["f"], ["qx", "f"], ["g"]]
    assert found["perplexity"] == pytest.approx(math.exp((1 + 2 + 3 + 3 + 1 + 1 + 1) / 7))
    assert (found["words"], found["unknown"]) == (7, 1 / 8)


def test_dropout_stays_on() -> None:
    torch.manual_seed(0)
    model = WithDropout(DiT(preset("debug", 6, dropout=0.5)))
    model.eval()
    assert all(module.training for module in model.network.modules())


def test_without_carry_over_the_last_step_takes_all_proposals() -> None:
    """A model that predicts one token everywhere overwrites what was revealed before."""

    def model(x_BN: torch.Tensor, t_B: torch.Tensor) -> torch.Tensor:
        token_B = (t_B >= 0.75).long()  # another token in the last of four steps
        return 60.0 * torch.nn.functional.one_hot(token_B, 4)[:, None].expand(-1, 8, -1).float()

    schedule = cwdfm.Polynomial(1.0)
    kept = cwdfm.sample(model, cwdfm.MaskSource(3), schedule, cwdfm.Euler(), shape=(16, 8), steps=4)
    free = cwdfm.sample(
        model, RewritableMaskSource(3), schedule, cwdfm.Euler(), shape=(16, 8), steps=4
    )
    assert set(kept.tokens.unique().tolist()) == {0, 1}
    assert set(free.tokens.unique().tolist()) == {1}
