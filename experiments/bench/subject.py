"""Models with random weights, random data, and training runs to measure."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from cwdfm.data import TokenData
from cwdfm.data.dataset import token_dtype
from cwdfm.data.text.tokenizer import CharacterTokenizer
from cwdfm.model.presets import preset
from cwdfm.model.transformer import DiT
from cwdfm.schedule import Polynomial
from cwdfm.source import Source
from cwdfm.train.config import TrainConfig
from cwdfm.train.run import Run
from experiments.bench.peer import POWER
from experiments.bench.settings import Settings

SCHEDULE = Polynomial(POWER)


def make_model(settings: Settings, source: Source, *, recorded: bool = True) -> DiT:
    """A transformer to sample from, compiled and captured as in `cwdfm sample`."""
    torch.manual_seed(0)
    with settings.device:
        model = DiT(preset(settings.shapes.model, source.num_tokens, dropout=0.0)).eval()
    shake(model)
    model.requires_grad_(False)
    if settings.compiled:
        model.compile_trunk(by_block=not settings.whole)
    if recorded:
        model.capture_trunk()
    return model


@torch.no_grad()
def shake(model: nn.Module) -> None:
    """Perturb all weights: the gates and the head of a new transformer are zero."""
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.02)


def make_run(settings: Settings, config: TrainConfig, vocab: int, **changes: Any) -> Run:
    """A training run on random tokens."""
    by_block = settings.compiled and not settings.whole
    changes |= {"model": settings.shapes.model, "compile": by_block}
    config = config.updated(**changes)
    run = Run(config, random_data(vocab, config), Path("nowhere"), settings.device)
    shake(run.model)
    if settings.compiled and settings.whole:
        run.model.compile_trunk(by_block=False)
    return run


def random_data(vocab: int, config: TrainConfig) -> TokenData:
    """Random tokens for one optimizer step."""
    shape = (config.optimizer.batch_size, config.data.length)
    rows = np.random.default_rng(0).integers(0, vocab, shape).astype(token_dtype(vocab))
    # Any characters will do; those above 65,535 contain no surrogates.
    characters = "".join(map(chr, range(0x10000, 0x10000 + vocab - 1)))
    return TokenData(
        name="random",
        train=rows,
        valid=rows[:1],  # must not be empty
        tokenizer=CharacterTokenizer(characters),
        report={},
        examples={},
        source={},
    )
