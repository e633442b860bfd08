"""A training run's state and its step: a pure function of (recipe, data), however interrupted.

Nothing random is carried from step to step. The rows of a batch, the corruption, the times and the
dropout are all functions of (seed, step, place in the global batch), so a run that was killed and
started again ends with the weights it would have had, and processes share a batch as one would
have done it alone (dropout apart, which each process draws for itself).
"""

import math
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cwdfm.config import later
from cwdfm.data import TokenData
from cwdfm.distributed import all_reduce_mean, rank, world_size
from cwdfm.errors import InputError
from cwdfm.method.base import DataBatch, Objective, TrainingBatch
from cwdfm.model.transformer import DiT
from cwdfm.ops.random import derive_seed
from cwdfm.pretrained import Pretrained
from cwdfm.schedule import stratified_times
from cwdfm.train.batch import EpochStream, part
from cwdfm.train.checkpoint import load_latest, save_checkpoint
from cwdfm.train.cuda_graph import Graphed
from cwdfm.train.methods import Task
from cwdfm.train.optimizer import Average, learning_rate, make_optimiser
from cwdfm.train.parallel import keeping_gradients, like, own, spread, whole
from cwdfm.train.prefetch import Ahead
from cwdfm.train.recipe import MANNER, Recipe, build

MOMENTS = ("exp_avg", "exp_avg_sq")


class Run:
    """A training run on one process of possibly many."""

    def __init__(
        self,
        recipe: Recipe,
        data: TokenData,
        out: Path,
        device: torch.device,
        *,
        init: Pretrained | None = None,
        card: dict[str, Any] | None = None,
    ) -> None:
        self.recipe, self.data, self.out, self.device = recipe, data, out, device
        self.card = card or {}
        _check_data(recipe, data)
        if recipe.batch_size % (world_size() * recipe.accumulation):
            raise InputError(
                f"batch_size {recipe.batch_size} must be a multiple of processes x accumulation = "
                f"{world_size()} x {recipe.accumulation}"
            )
        self.task: Task = build(recipe, data.tokenizer.vocab_size, init)
        self.objective = self.task.objective
        train = part(data.train, recipe.train_rows, recipe.seed)
        self.train_rows = EpochStream(train, recipe.seed, device)
        self.valid_rows = EpochStream(data.valid, recipe.seed, device)
        torch.manual_seed(recipe.seed)  # the initial weights, the same on every process
        self.model = DiT(self.task.model).to(device)
        if init is not None:
            self.model.load_state_dict(init.model.state_dict())
        self._forward = spread(self.model, recipe.parallel, device)
        if recipe.compile:
            self.model.compile_trunk(by_block=True)  # ready in seconds
        self.graphed = self._graphable()
        if self.graphed:
            graphed = Graphed(self.model, self.model.trunk)
            self.model.trunk = graphed  # type: ignore[assignment, method-assign]
        self.optimiser = make_optimiser(recipe, self.model)
        self.average = Average(self.model, recipe.ema)
        self._ahead: Ahead[tuple[Objective, int, int], TrainingBatch]
        self._ahead = Ahead(lambda key: self.training_batch(*key), device)
        self.step = 0
        self.losses: list[Tensor] = []  # of the steps since the last record
        self.best, self.best_step = math.inf, -1  # lowest validation loss, and when it was
        self.earlier: list[dict[str, Any]] = []  # settings that were others up to a step

    def _graphable(self) -> bool:
        """Whether the trunk's passes are recorded: one process, attention without a plan.

        And neither micro-batches nor dropout: recordings with those were not seen to be right.
        """
        recipe = self.recipe
        alone = world_size() == 1 and self.device.type == "cuda"
        plain = self.task.model.attention != "block" and recipe.dropout == 0
        return alone and recipe.compile and plain and recipe.accumulation == 1

    def fixed(self, x_1: Tensor) -> Tensor:
        """Which tokens are given: the first, if the recipe says so."""
        fixed = torch.zeros_like(x_1, dtype=torch.bool)
        fixed[:, 0] = self.recipe.fix_first
        return fixed

    def training_batch(self, objective: Objective, step: int, number: int) -> TrainingBatch:
        """Micro-batch `number` of this process's share of a step's global batch, corrupted."""
        recipe = self.recipe
        size = recipe.batch_size // world_size() // recipe.accumulation
        first = (rank() * recipe.accumulation + number) * size
        position = torch.arange(first, first + size)
        t = stratified_times(recipe.seed, step, position, recipe.batch_size)
        x_1 = self.train_rows.places(step * recipe.batch_size + position)
        return objective.training_batch(self.batch(x_1, t.float(), position, step))

    def batch(self, x_1: Tensor, t: Tensor, index: Tensor, step: int) -> DataBatch:
        """Sequences [B, N] at times and places [B] of a step's global batch, on the device."""
        t, index = t.to(self.device), index.to(self.device)
        return DataBatch(x_1, t, self.fixed(x_1), index, seed=self.recipe.seed, step=step)

    def train_step(self) -> Tensor:
        """One optimiser step; returns the mean loss of the global batch."""
        recipe = self.recipe
        torch.manual_seed(derive_seed(recipe.seed, self.step * world_size() + rank()))  # dropout
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate(recipe, self.step)
        self._forward.train()
        if self.graphed:
            for parameter in self.model.parameters():
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
        losses = []
        numbers = [(self.step, number) for number in range(recipe.accumulation)]
        following = [*numbers[1:], (self.step + 1, 0)]
        for here, after in zip(numbers, following, strict=True):
            batch = self._ahead.take((self.objective, *here))
            more = after[0] == self.step  # and the last one's backward pass exchanges gradients
            with keeping_gradients(self._forward) if more else nullcontext():
                losses.append(self._learn(batch))
            self._ahead.release(batch)
            if after[0] < recipe.steps:
                self._ahead.start((self.objective, *after))
        nn.utils.clip_grad_norm_(self.model.parameters(), recipe.clip)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=not self.graphed)
        self.average.update(self.model, self.step)
        self.step += 1
        return all_reduce_mean(torch.stack(losses).mean())

    def _learn(self, batch: TrainingBatch) -> Tensor:
        """A micro-batch's loss, its gradients added to those of the parameters.

        Nothing of its graph is left behind: passes cannot be recorded while nodes of another live.
        """
        with self.precision():
            loss = batch.loss(self._forward)
        (loss / self.recipe.accumulation).backward()
        return loss.detach()

    def precision(self) -> torch.autocast:
        """Matrix products in the recipe's precision, for a while."""
        half = self.recipe.precision == "bfloat16" and self.device.type == "cuda"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=half)

    def averaged(self) -> Pretrained:
        """The model as it is used: a copy with the averaged weights, and all that belongs to it.

        Every process must ask, since sharded weights are gathered.
        """
        model = DiT(self.task.model).to(self.device)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(whole(self.average.weights[name]))
        return Pretrained(
            model=model.eval(),
            method=self.task.method,
            tokenizer=self.data.tokenizer,
            length=self.data.length,
            fix_first=self.recipe.fix_first,
            card={**self.told(), "steps": self.step, "data": self.data.name, **self.card},
        )

    def told(self) -> dict[str, Any]:
        """The recipe, and what of it was otherwise up to which step, if anything was."""
        recipe = asdict(self.recipe)
        return {"recipe": recipe, "earlier": self.earlier} if self.earlier else {"recipe": recipe}

    def finite(self) -> bool:
        """Whether all weights, averages and moments are numbers; every process must ask."""
        tensors = [own(p.detach()) for p in self.model.parameters()]
        tensors += [own(w) for w in self.average.weights.values()]
        for state in self.optimiser.state.values():
            tensors += [own(state[key]) for key in MOMENTS if key in state]
        norms = torch.stack(torch._foreach_norm(tensors)).double().sum()
        return bool(torch.isfinite(all_reduce_mean(norms)))

    def save(self) -> None:
        """Write a checkpoint of everything the next step needs; every process must ask."""
        model = self.averaged()
        tensors = {}
        for name, parameter in self.model.named_parameters():
            tensors[f"model.{name}"] = whole(parameter.detach())
            for key in MOMENTS:
                if key in (state := self.optimiser.state[parameter]):
                    tensors[f"{key}.{name}"] = whole(state[key])
        if rank() == 0:
            meta = {
                **self.told(),
                "data": self.data.fingerprint,
                "best": self.best if self.best_step >= 0 else None,
                "best_step": self.best_step,
                "losses": [float(loss) for loss in self.losses],
                "objective": self.objective.state(),
            }
            folder = self.out / "checkpoints"
            save_checkpoint(folder, self.step, model, tensors, meta, self.recipe.keep)

    def resume(self) -> bool:
        """Go on from the newest whole checkpoint, if there is one."""
        found = load_latest(self.out / "checkpoints")
        if found is None:
            return False
        averaged, tensors, meta = found
        changed = self._changed(meta)
        self.earlier = meta.get("earlier", [])
        if changed:
            self.earlier = [*self.earlier, {"until": meta["step"], **changed}]
        self.step, self.best_step = meta["step"], meta["best_step"]
        self.best = math.inf if meta["best"] is None else meta["best"]
        self.losses = [torch.tensor(loss, device=self.device) for loss in meta["losses"]]
        self.objective = self.objective.restored(meta.get("objective", {}))
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(like(tensors[f"model.{name}"], parameter))
                self.average.weights[name].copy_(like(averaged[name], parameter))
                if f"{MOMENTS[0]}.{name}" not in tensors:
                    continue
                state = {key: like(tensors[f"{key}.{name}"], parameter) for key in MOMENTS}
                steps = torch.tensor(self.step, dtype=torch.float32, device=self.device)
                self.optimiser.state[parameter] = {"step": steps, **state}
        return True

    def _changed(self, meta: dict[str, Any]) -> dict[str, Any]:
        """The checkpoint's settings that are others now; those that matter are refused."""
        theirs, ours = meta["recipe"], asdict(self.recipe)
        del ours["data"]  # may lie elsewhere now; what it holds is compared below
        theirs = later(Recipe) | theirs
        changed = {k: theirs.get(k) for k in ours if theirs.get(k) != ours[k]}
        # Where validations change the objective, what is trained hangs on when they are.
        free = MANNER if self.objective.state() else (*MANNER, "validate_every")
        if wrong := sorted(changed.keys() - set(free)):
            longer = f"; to train its model further, give --init {self.out} and another --out"
            raise InputError(
                f"{self.out} holds a run with another recipe (different: {', '.join(wrong)}); "
                f"give another --out, or the recipe it was started with. Only "
                f"{', '.join(free)} may change on the way{longer if 'steps' in wrong else ''}"
            )
        if meta["data"] != self.data.fingerprint:
            raise InputError(
                f"{self.out} holds a run on other data than {self.data.name} is now: the sequences "
                f"or the vocabulary differ; give another --out, or the data it was started with"
            )
        return changed


def _check_data(recipe: Recipe, data: TokenData) -> None:
    """Refuse data that the recipe cannot be trained on."""
    if data.length != recipe.length:
        raise InputError(
            f"{data.name} has sequences of {data.length} tokens, and the recipe's length is "
            f"{recipe.length}; give a length (--length) of {data.length}, or prepare the data anew"
        )
    if not len(data.train):
        part = data.source.get("part")
        cure = "more data" if part is None else f"data prepared without --part; these have {part!r}"
        raise InputError(
            f"{data.name} holds nothing to train on: its {len(data.valid):,} sequences are all "
            f"held out; give {cure}"
        )
    if recipe.train_rows > len(data.train):
        raise InputError(
            f"train_rows is {recipe.train_rows:,}, and {data.name} holds {len(data.train):,} "
            f"sequences to train on; give at most so many (--train-rows), or 0 for all"
        )
    if not len(data.valid):
        raise InputError(
            f"{data.name} holds nothing out for validation: its {len(data.train):,} sequences are "
            f"all to train on; give more data"
        )
