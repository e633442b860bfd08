"""A tiny untrained model and a file of random samples, for tests of the commands."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

import cwdfm
from cwdfm.data import ByteTokenizer
from cwdfm.method import Flow, Method
from cwdfm.model.presets import preset
from cwdfm.model.transformer import DiT
from cwdfm.sample_file import SampleFile, write_samples

MODEL_LENGTH = 16
SAMPLE_LENGTH = 12
WORDS = ["call", "me", "ishmael", "some", "years", "ago", "never", "mind", "how", "precisely"]
OPTIONS = {"model": "tiny", "solver": "euler", "steps": 8, "seed": 0}


def tiny_model(
    tokenizer: Any,
    kind: type[cwdfm.MaskSource | cwdfm.UniformSource] = cwdfm.UniformSource,
    *,
    method: Method | None = None,
    **options: Any,
) -> cwdfm.Pretrained:
    """Build an untrained model of 16 positions whose predictions depend on its input."""
    torch.manual_seed(0)
    method = method or Flow(kind(tokenizer.vocab_size), cwdfm.Polynomial(2.0))
    size = preset("debug", method.num_tokens, dropout=0.0, positions=MODEL_LENGTH)
    model = DiT(method.network(size))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.1)
    return cwdfm.Pretrained(model.eval(), method, tokenizer, MODEL_LENGTH, **options)


def write_random_samples(path: Path, seed: int = 0, count: int = 30, **options: Any) -> Path:
    """Write random words in bytes, as `cwdfm sample` does."""
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice(WORDS, size=9))[:SAMPLE_LENGTH] for _ in range(count)]
    tokens = [ByteTokenizer().encode(text) for text in texts]
    head = {"options": OPTIONS | options, "tokenizer": "bytes", "evaluations": 7 * count}
    write_samples(path, SampleFile(texts, tokens, head))
    return path
