"""A training run's state and its step: a pure function of (recipe, data), however interrupted.

Nothing random is carried from step to step. The rows of a batch, the corruption, the times and the
dropout are all functions of (seed, step, place in the global batch), so a run that was killed and
started again ends with the weights it would have had, and processes share a batch as one would
have done it alone (dropout apart, which each process draws for itself).
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cwdfm.errors import InputError
from cwdfm.model.dit import DiT
from cwdfm.times import stratified_times
from cwdfm.train.checkpoint import load_latest, save_checkpoint
from cwdfm.train.optimise import Average, learning_rate, make_optimiser
from cwdfm.train.recipe import Recipe, Task, build

VALIDATION_ROWS = 2048


class Run:
    """A training run on one process of possibly many."""

    def __init__(
        self,
        recipe: Recipe,
        vocab_size: int,
        train: Tensor,
        valid: Tensor,
        out: Path,
        device: torch.device,
    ) -> None:
        self.recipe, self.out, self.device = recipe, out, device
        self.task: Task = build(recipe, vocab_size)
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.world = dist.get_world_size() if dist.is_initialized() else 1
        if recipe.batch_size % (self.world * recipe.accumulation):
            raise InputError(
                f"batch_size {recipe.batch_size} must be a multiple of processes x accumulation = "
                f"{self.world} x {recipe.accumulation}"
            )
        self.train_rows, self.valid_rows = train.to(device), valid[:VALIDATION_ROWS].to(device)
        torch.manual_seed(recipe.seed)  # the initial weights, the same on every process
        self.model = DiT(self.task.model).to(device)
        self.optimiser = make_optimiser(recipe, self.model)
        self.average = Average(self.model, recipe.ema)
        self.step = 0
        self.best = math.inf
        self._permutation: tuple[int, Tensor] = (-1, torch.empty(0))
        self._forward: nn.Module = self.model
        if self.world > 1:
            self._forward = nn.parallel.DistributedDataParallel(self.model)
        if recipe.compile:
            self._forward = torch.compile(self._forward)  # type: ignore[assignment]

    def rows(self, step: int, position_B: Tensor) -> Tensor:
        """Data rows [B, N] at places of the global batch: epochs of fresh permutations, joined."""
        n = len(self.train_rows)
        place_B = step * self.recipe.batch_size + position_B
        row_B = torch.empty_like(place_B)
        for epoch in range(int(place_B[0]) // n, int(place_B[-1]) // n + 1):
            inside = place_B // n == epoch
            row_B[inside] = self._shuffled(epoch)[place_B[inside] % n]
        return self.train_rows[row_B.to(self.device)].long()

    def _shuffled(self, epoch: int) -> Tensor:
        if self._permutation[0] != epoch:
            generator = torch.Generator().manual_seed((self.recipe.seed << 20) + epoch)
            order = torch.randperm(len(self.train_rows), generator=generator)
            self._permutation = (epoch, order)
        return self._permutation[1]

    def fixed(self, x_1: Tensor) -> Tensor:
        """Which tokens are given: the first, if the recipe says so."""
        fixed = torch.zeros_like(x_1, dtype=torch.bool)
        fixed[:, 0] = self.recipe.fix_first
        return fixed

    def micro_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """This process's share of the global batch: places in it and times, a micro-batch each."""
        total = self.recipe.batch_size
        share = total // self.world
        mine = torch.arange(self.rank * share, (self.rank + 1) * share)
        for position in mine.split(share // self.recipe.accumulation):
            t = stratified_times(self.recipe.seed, self.step, position, total)
            yield position, t.float().to(self.device)

    def train_step(self) -> Tensor:
        """One optimiser step; returns the mean loss of this process's share."""
        recipe = self.recipe
        torch.manual_seed((recipe.seed << 32) + self.step * self.world + self.rank)  # dropout
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate(recipe, self.step)
        self._forward.train()
        losses = []
        for position, t in self.micro_batches():
            x_1 = self.rows(self.step, position)
            loss = self._loss(x_1, t, step=self.step, index=position.to(self.device))
            (loss / recipe.accumulation).backward()
            losses.append(loss.detach())
        nn.utils.clip_grad_norm_(self.model.parameters(), recipe.clip)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.average.update(self.model, self.step)
        self.step += 1
        return torch.stack(losses).mean()

    def _loss(self, x_1: Tensor, t: Tensor, *, step: int, index: Tensor) -> Tensor:
        batch = self.task.path.sample(
            x_1, t, seed=self.recipe.seed, step=step, index=index, fixed=self.fixed(x_1)
        )
        half = self.recipe.precision == "bfloat16" and self.device.type == "cuda"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=half):
            logits = self._forward(batch.x_t, batch.t)
        return self.task.loss(logits, batch, self.task.schedule)

    @contextmanager
    def averaged(self) -> Iterator[DiT]:
        """The model with its averaged weights, in evaluation mode, for a while."""
        own = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        self._load(self.average.weights)
        self.model.eval()
        try:
            yield self.model
        finally:
            self._load(own)
            self.model.train()

    @torch.no_grad()
    def _load(self, weights: dict[str, Tensor]) -> None:
        for name, parameter in self.model.named_parameters():
            parameter.copy_(weights[name])

    @torch.no_grad()
    def validation_loss(self) -> float:
        """The recipe's loss on held-out rows at fixed times and noise."""
        total, n = 0.0, len(self.valid_rows)
        with self.averaged():
            for index in torch.arange(n).split(512):
                t = stratified_times(self.recipe.seed, 0, index, n).float().to(self.device)
                x_1 = self.valid_rows[index.to(self.device)].long()
                loss = self._loss(x_1, t, step=2**31, index=index.to(self.device))
                total += float(loss) * len(index)
        return total / n

    def save(self) -> None:
        """Write a checkpoint of everything the next step needs (first process only)."""
        if self.rank:
            return
        tensors = {f"model.{k}": v for k, v in self.model.state_dict().items()}
        tensors |= {f"average.{k}": v for k, v in self.average.weights.items()}
        names = [name for name, _ in self.model.named_parameters()]
        for index, moments in self.optimiser.state_dict()["state"].items():
            for key in ("exp_avg", "exp_avg_sq"):
                tensors[f"{key}.{names[index]}"] = moments[key]
        meta = {"recipe": asdict(self.recipe), "best": self.best}
        save_checkpoint(self.out / "checkpoints", self.step, tensors, meta, self.recipe.keep)

    def resume(self) -> bool:
        """Go on from the newest whole checkpoint, if there is one."""
        found = load_latest(self.out / "checkpoints")
        if found is None:
            return False
        tensors, meta = found
        if meta["recipe"] != asdict(self.recipe):
            theirs, ours = meta["recipe"], asdict(self.recipe)
            changed = sorted(k for k in ours if theirs.get(k) != ours[k])
            raise InputError(
                f"{self.out} holds a run with another recipe (different: {', '.join(changed)}); "
                f"give another --out, or the recipe it was started with"
            )
        self.model.load_state_dict(
            {k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")}
        )
        self.step, self.best = meta["step"], meta["best"]
        for name, parameter in self.model.named_parameters():
            self.average.weights[name].copy_(tensors[f"average.{name}"])
            if f"exp_avg.{name}" in tensors:
                self.optimiser.state[parameter] = {
                    "step": torch.tensor(self.step, dtype=torch.float32, device=self.device),
                    "exp_avg": tensors[f"exp_avg.{name}"].to(self.device),
                    "exp_avg_sq": tensors[f"exp_avg_sq.{name}"].to(self.device),
                }
        return True
