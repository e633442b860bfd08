"""A finished run as a model to keep."""

from dataclasses import asdict
from typing import Any

import torch

from cwdfm.data.tokenizer import Tokenizer
from cwdfm.model.dit import DiT
from cwdfm.pretrained import Pretrained
from cwdfm.train.run import Run


def finish(run: Run, tokenizer: Tokenizer, card: dict[str, Any]) -> Pretrained:
    """The run's averaged weights with everything that sampling needs."""
    model = DiT(run.task.model).to(run.device)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(run.average.weights[name])
    return Pretrained(
        model=model.eval(),
        source=run.task.source,
        schedule=run.task.schedule,
        tokenizer=tokenizer,
        length=run.recipe.length,
        fix_first=run.recipe.fix_first,
        card={**card, "recipe": asdict(run.recipe), "steps": run.step, "best_validation": run.best},
    )
