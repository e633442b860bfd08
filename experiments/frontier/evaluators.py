"""Evaluators of text: causal LMs, and autoregressive models of this library.

Causal LMs score the decoded text, models of this library the sampled tokens.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

import cwdfm
from cwdfm.baselines.autoregressive import Autoregressive
from cwdfm.errors import InputError
from cwdfm.metrics.evaluator import EvaluatorLM, LoadedEvaluatorLM
from cwdfm.metrics.perplexity import generative_perplexity

Tokens = NDArray[np.int64]


class Evaluator(Protocol):
    """A model that scores samples."""

    def perplexity(self, tokens: Tokens, texts: Callable[[Tokens], list[str]]) -> float:
        """The corpus perplexity of samples [B, N]; `texts` decodes them."""


class CausalLM:
    """A Hugging Face model."""

    def __init__(self, name: str, device: str) -> None:
        self.loaded: LoadedEvaluatorLM = EvaluatorLM(name, device=device).load()

    def perplexity(self, tokens: Tokens, texts: Callable[[Tokens], list[str]]) -> float:
        return generative_perplexity(texts(tokens), self.loaded).perplexity.value


class OwnModel:
    """An autoregressive model of this library, with the tokenizer of the samples."""

    def __init__(self, name: str, device: str) -> None:
        self.trained = cwdfm.load(name).to(device)
        self.device = device
        if not isinstance(self.trained.method, Autoregressive):
            raise InputError(
                f"{name} cannot evaluate samples: its method is "
                f"{type(self.trained.method).__name__}; train one with --method ar"
            )

    def perplexity(self, tokens: Tokens, texts: Callable[[Tokens], list[str]]) -> float:
        method, x_BN = self.trained.method, torch.from_numpy(tokens).to(self.device)
        return math.exp(method.likelihood(self.trained.model, x_BN).nats_per_token)


def load_evaluator(name: str, device: str) -> Evaluator:
    """The evaluator of this name: a folder of this library, or a causal LM."""
    config = Path(name) / "config.json"
    own = config.exists() and "method" in json.loads(config.read_text())
    return (OwnModel if own else CausalLM)(name, device)
