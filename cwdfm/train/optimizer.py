"""The optimiser's parts: learning rate, AdamW, averaged weights."""

import math

import torch
from torch import Tensor, nn

from cwdfm.train.parallel import own
from cwdfm.train.recipe import Recipe


def learning_rate(recipe: Recipe, step: int) -> float:
    """Linear warm-up to the peak, then a cosine down to the minimum at the last step."""
    if step < recipe.warmup:
        return recipe.learning_rate * (step + 1) / recipe.warmup
    share = min(1.0, (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup))
    low, high = recipe.min_learning_rate, recipe.learning_rate
    return low + (high - low) * (1 + math.cos(math.pi * share)) / 2


def make_optimiser(recipe: Recipe, model: nn.Module) -> torch.optim.AdamW:
    """AdamW over all parameters, fused on a GPU."""
    return torch.optim.AdamW(
        model.parameters(),
        lr=recipe.learning_rate,
        betas=(recipe.beta1, recipe.beta2),
        eps=1e-8,
        weight_decay=recipe.weight_decay,
        fused=next(model.parameters()).is_cuda,
    )


class Average:
    """Exponentially averaged weights, with the ramp min(decay, (1 + n) / (10 + n))."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights: dict[str, Tensor] = {
            name: p.detach().clone() for name, p in model.named_parameters()
        }

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Move the average towards the model after optimiser step number `step` (from 0)."""
        decay = min(self.decay, (1 + step) / (10 + step))
        averaged = [own(w) for w in self.weights.values()]
        torch._foreach_lerp_(averaged, [own(p.detach()) for p in model.parameters()], 1 - decay)
