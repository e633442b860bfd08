"""The learning rate schedule, AdamW, and the exponential moving average of the weights."""

import math

import torch
from torch import Tensor, nn

from cwdfm.train.config import OptimizerConfig
from cwdfm.train.execution import local


def learning_rate(config: OptimizerConfig, step: int) -> float:
    """Linear warmup to the peak, then cosine decay to the minimum at the last step."""
    if step < config.warmup:
        return config.learning_rate * (step + 1) / config.warmup
    progress = min(1.0, (step - config.warmup) / max(1, config.steps - config.warmup))
    low, high = config.min_learning_rate, config.learning_rate
    return low + (high - low) * (1 + math.cos(math.pi * progress)) / 2


def make_optimizer(config: OptimizerConfig, model: nn.Module) -> torch.optim.AdamW:
    """AdamW over all parameters, fused on a GPU."""
    return torch.optim.AdamW(
        model.parameters(),
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=1e-8,
        weight_decay=config.weight_decay,
        fused=next(model.parameters()).is_cuda,
    )


class WeightAverage:
    """Exponential moving average of the weights, with decay min(decay, (1 + n) / (10 + n))."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights: dict[str, Tensor] = {
            name: p.detach().clone() for name, p in model.named_parameters()
        }

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Update the average after optimizer step `step`, counted from 0."""
        decay = min(self.decay, (1 + step) / (10 + step))
        averaged = [local(w) for w in self.weights.values()]
        torch._foreach_lerp_(averaged, [local(p.detach()) for p in model.parameters()], 1 - decay)
