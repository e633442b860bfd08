"""Evaluators of text: causal LMs, and autoregressive models of this library.

Causal LMs score the decoded text, models of this library the sampled tokens.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

import cwdfm
from cwdfm.baselines.autoregressive import Autoregressive
from cwdfm.errors import InputError
from cwdfm.metrics.evaluator import EvaluatorLM
from cwdfm.metrics.perplexity import generative_perplexity

Tokens = NDArray[np.int64]
# The corpus perplexity of samples [B, N], which the second argument decodes.
Evaluator = Callable[[Tokens, Callable[[Tokens], list[str]]], float]


def causal_lm(name: str, device: str) -> Evaluator:
    """A Hugging Face model."""
    loaded = EvaluatorLM(name, device=device).load()
    return lambda tokens, texts: generative_perplexity(texts(tokens), loaded).perplexity.value


def own_model(name: str, device: str) -> Evaluator:
    """An autoregressive model of this library, with the tokenizer of the samples."""
    trained = cwdfm.load(name).to(device)
    method = trained.method
    if not isinstance(method, Autoregressive):
        raise InputError(
            f"{name} cannot evaluate samples: its method is {type(method).__name__}; train one "
            f"with --method ar"
        )

    def perplexity(tokens: Tokens, _: object) -> float:
        x_BN = torch.from_numpy(tokens).to(device)
        return math.exp(method.likelihood(trained.model, x_BN).nats_per_token)

    return perplexity


def load_evaluator(name: str, device: str) -> Evaluator:
    """The evaluator of this name: a model or training run of this library, or a causal LM."""
    configs = (Path(name) / "config.json", Path(name) / "model" / "config.json")
    own = any(path.exists() and "method" in json.loads(path.read_text()) for path in configs)
    return (own_model if own else causal_lm)(name, device)
