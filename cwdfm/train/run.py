"""The state of a training run, and the training step.

No random state is carried over between steps. The rows of a batch, their corruption, the times and
the dropout are functions of (seed, step, position in the global batch). A run that is killed and
resumed therefore ends with the same weights. The result does not depend on the number of processes,
except for dropout, which each process draws independently.
"""

import math
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from cwdfm.config import flatten
from cwdfm.data import TokenData
from cwdfm.distributed import all_reduce_mean, gather, rank, world_size
from cwdfm.errors import InputError
from cwdfm.method.base import DataBatch, Objective, TrainingBatch
from cwdfm.method.flow import Flow
from cwdfm.model.conditions import ConditionEmbedding, condition_of, drop_conditions, encode_columns
from cwdfm.model.transformer import DiT
from cwdfm.ops.random import derive_seed
from cwdfm.pretrained import Pretrained
from cwdfm.schedule import stratified_times
from cwdfm.train.batches import EpochStream, Prefetch, subset
from cwdfm.train.checkpoint import load_latest, save_checkpoint
from cwdfm.train.config import TrainConfig
from cwdfm.train.execution import (
    GraphedTrunk,
    gathered,
    local,
    no_gradient_sync,
    parallelize,
    sharded_like,
)
from cwdfm.train.optimizer import WeightAverage, learning_rate, make_optimizer

MOMENTS = ("exp_avg", "exp_avg_sq")  # the optimizer state of a parameter

# Fields that may change when a run resumes, because they affect only rounding and dropout.
RESUMABLE = (
    *("accumulation", "compile", "parallel", "log_every", "checkpoint_every", "keep"),
    *("elbo_rows", "previews", "preview_steps"),
)


class Run:
    """A training run in one of its processes."""

    def __init__(
        self,
        config: TrainConfig,
        data: TokenData,
        out: Path,
        device: torch.device,
        *,
        init: Pretrained | None = None,
        card: dict[str, Any] | None = None,
    ) -> None:
        self.config, self.data, self.out, self.device = config, data, out, device
        self.card = card or {}
        batch_size, accumulation = config.optimizer.batch_size, config.runtime.accumulation
        if batch_size % (world_size() * accumulation):
            raise InputError(
                f"batch_size {batch_size} must be a multiple of processes x accumulation = "
                f"{world_size()} x {accumulation}",
                fields=("batch_size", "accumulation"),
            )
        _check_data(config, data)
        task = config.build(data.tokenizer.vocab_size, init)
        conditions = task.model.conditions or tuple(
            condition_of(name, data) for name in config.data.condition
        )
        self.task = replace(task, model=replace(task.model, conditions=conditions))
        self.objective = self.task.objective
        train = subset(data.train, config.data.train_rows, config.seed)
        self.train_rows = EpochStream(train, config.seed, device)
        self.valid_rows = EpochStream(data.valid, config.seed, device)
        numbers = encode_columns(conditions, data)  # [n + m, C]
        train_numbers = subset(numbers[: len(data.train)], config.data.train_rows, config.seed)
        self.train_condition = torch.from_numpy(train_numbers).to(device)
        self.valid_condition = torch.from_numpy(numbers[len(data.train) :]).to(device)

        torch.manual_seed(config.seed)  # the same initial weights on every process
        self.model = DiT(self.task.model).to(device)
        if init is not None:
            _load_initial(self.model, init.model)
        self._forward = parallelize(self.model, config.runtime.parallel, device)
        if config.runtime.compile:
            self.model.compile_trunk(by_block=True)  # block by block, which compiles in seconds
        self.graphed = self._can_use_cuda_graph()
        if self.graphed:
            graphed = GraphedTrunk(self.model, self.model.trunk)
            self.model.trunk = graphed  # type: ignore[assignment, method-assign]
        self.optimizer = make_optimizer(config.optimizer, self.model)
        self.average = WeightAverage(self.model, config.optimizer.ema)
        self._prefetch: Prefetch[tuple[Objective, int, int], TrainingBatch]
        self._prefetch = Prefetch(lambda key: self.training_batch(*key), device)

        self.step = 0
        self.losses: list[Tensor] = []  # losses since the last log record
        self.best, self.best_step = math.inf, -1  # lowest validation loss, and its step
        self.earlier: list[dict[str, Any]] = []  # settings that changed when the run resumed

    def _can_use_cuda_graph(self) -> bool:
        """Whether to capture the trunk's passes as CUDA graphs.

        Requires a single process on a GPU and no block attention. Gradient accumulation and dropout
        are excluded because their captures have not been verified.
        """
        runtime = self.config.runtime
        single = world_size() == 1 and self.device.type == "cuda" and runtime.accumulation == 1
        plain = self.task.model.attention != "block" and self.config.model.dropout == 0
        return single and runtime.compile and plain

    @property
    def dropout_reveals_positions(self) -> bool:
        """Whether the network can tell masked positions apart in training, but not in evaluation.

        Rotary embeddings encode only relative positions, so all positions of a fully masked
        sequence look the same, unless dropout makes them different.
        """
        method, model = self.task.method, self.task.model
        masked = isinstance(method, Flow) and method.source.marks_noise
        return masked and model.dropout > 0 and not (model.positions or self.config.data.fix_first)

    def fixed(self, x_1: Tensor) -> Tensor:
        """The mask [B, N] of fixed tokens: the first one if `fix_first` is set."""
        fixed = torch.zeros_like(x_1, dtype=torch.bool)
        fixed[:, 0] = self.config.data.fix_first
        return fixed

    def data_batch(
        self, x_1: Tensor, t: Tensor, index: Tensor, step: int, condition: Tensor | None = None
    ) -> DataBatch:
        """Make a batch of sequences [B, N] at times [B]; `index` [B]: positions in the batch."""
        t, index = t.to(self.device), index.to(self.device)
        return DataBatch(x_1, t, self.fixed(x_1), index, self.config.seed, step, condition)

    def training_batch(self, objective: Objective, step: int, micro_batch: int) -> TrainingBatch:
        """Draw and corrupt one micro-batch of this process's share of a global batch."""
        batch_size = self.config.optimizer.batch_size
        accumulation = self.config.runtime.accumulation
        size = batch_size // world_size() // accumulation
        first = (rank() * accumulation + micro_batch) * size
        position = torch.arange(first, first + size)
        t = stratified_times(self.config.seed, step, position, batch_size)
        row = self.train_rows.numbers(step * batch_size + position)
        condition = self.train_condition[row.to(self.device)]
        if condition.shape[1]:
            condition = drop_conditions(
                condition,
                self.config.data.condition_dropout,
                seed=self.config.seed,
                index=position.to(self.device),
                step=step,
            )
        batch = self.data_batch(self.train_rows.at(row), t.float(), position, step, condition)
        return objective.training_batch(batch)

    def train_step(self) -> Tensor:
        """Take one optimizer step. Returns the mean loss over the global batch."""
        config = self.config
        torch.manual_seed(derive_seed(config.seed, self.step * world_size() + rank()))  # dropout
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(config.optimizer, self.step)
        self._forward.train()
        if self.graphed:  # the graph adds to existing gradients
            for parameter in self.model.parameters():
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
        losses = []
        batches = [(self.step, number) for number in range(config.runtime.accumulation)]
        following = [*batches[1:], (self.step + 1, 0)]
        for current, after in zip(batches, following, strict=True):
            batch = self._prefetch.get((self.objective, *current))
            last = after[0] > self.step  # the last backward pass of a step reduces the gradients
            with nullcontext() if last else no_gradient_sync(self._forward):
                losses.append(self._backward(batch))
            self._prefetch.release(batch)
            if after[0] < config.optimizer.steps:
                self._prefetch.start((self.objective, *after))
        nn.utils.clip_grad_norm_(self.model.parameters(), config.optimizer.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=not self.graphed)
        self.average.update(self.model, self.step)
        self.step += 1
        return all_reduce_mean(torch.stack(losses).mean())

    def _backward(self, batch: TrainingBatch) -> Tensor:
        """Run the forward and backward pass of a micro-batch. Returns its loss.

        A separate method, so that the autograd graph is freed on return: a CUDA graph cannot be
        captured while nodes of another graph are alive.
        """
        with self.precision():
            loss = batch.loss(self._forward)
        (loss / self.config.runtime.accumulation).backward()
        return loss.detach()

    def precision(self) -> torch.autocast:
        """A context that runs matrix products in the config's precision."""
        half = self.config.runtime.precision == "bfloat16" and self.device.type == "cuda"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=half)

    def averaged(self) -> Pretrained:
        """A copy of the current model with the averaged weights.

        Every process must call this, since it gathers sharded weights.
        """
        model = DiT(self.task.model).to(self.device)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(gathered(self.average.weights[name]))
        return Pretrained(
            model=model.eval(),
            method=self.task.method,
            tokenizer=self.data.tokenizer,
            length=self.data.length,
            fix_first=self.config.data.fix_first,
            card={**self.settings(), "steps": self.step, "data": self.data.name, **self.card},
        )

    def settings(self) -> dict[str, Any]:
        """The config, and earlier values of settings that changed when the run resumed."""
        earlier = {"earlier": self.earlier} if self.earlier else {}
        return {"config": asdict(self.config), **earlier}

    def is_finite(self) -> bool:
        """Whether all weights, averages and moments are finite. Every process must call this."""
        tensors = [local(p.detach()) for p in self.model.parameters()]
        tensors += [local(w) for w in self.average.weights.values()]
        for state in self.optimizer.state.values():
            tensors += [local(state[key]) for key in MOMENTS if key in state]
        norms = torch.stack(torch._foreach_norm(tensors)).double().sum()
        return bool(torch.isfinite(all_reduce_mean(norms)))

    def save(self) -> None:
        """Write a checkpoint with the complete training state. Every process must call this."""
        model = self.averaged()
        tensors = {}
        for name, parameter in self.model.named_parameters():
            tensors[f"model.{name}"] = gathered(parameter.detach())
            for key in MOMENTS:
                if key in (state := self.optimizer.state[parameter]):
                    tensors[f"{key}.{name}"] = gathered(state[key])
        if rank() == 0:
            meta = {
                "step": self.step,
                **self.settings(),
                "data": self.data.fingerprint,
                "best": self.best if self.best_step >= 0 else None,
                "best_step": self.best_step,
                "losses": [float(loss) for loss in self.losses],
                "objective": self.objective.state(),
            }
            keep = self.config.checkpoint.keep
            save_checkpoint(self.out / "checkpoints", model, tensors, meta, keep)

    def resume(self) -> bool:
        """Resume from the newest valid checkpoint. Returns False if there is none."""
        loaded = load_latest(self.out / "checkpoints")
        newest = gather(None if loaded is None else loaded[2]["step"])
        if len(set(newest)) > 1:
            raise InputError(
                f"the processes found checkpoints of different steps in {self.out}: {newest}; "
                f"choose an output folder on a file system that all machines share"
            )
        if loaded is None:
            return False
        averaged, tensors, meta = loaded
        changed = self._changed_settings(meta)
        self.earlier = meta.get("earlier", [])
        if changed:
            self.earlier = [*self.earlier, {"until": meta["step"], **changed}]
        self.step, self.best_step = meta["step"], meta["best_step"]
        self.best = math.inf if meta["best"] is None else meta["best"]
        self.losses = [torch.tensor(loss, device=self.device) for loss in meta["losses"]]
        self.objective = self.objective.restored(meta.get("objective", {}))
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(sharded_like(tensors[f"model.{name}"], parameter))
                self.average.weights[name].copy_(sharded_like(averaged[name], parameter))
                if f"{MOMENTS[0]}.{name}" not in tensors:
                    continue
                state = {key: sharded_like(tensors[f"{key}.{name}"], parameter) for key in MOMENTS}
                steps = torch.tensor(self.step, dtype=torch.float32, device=self.device)
                self.optimizer.state[parameter] = {"step": steps, **state}
        return True

    def _changed_settings(self, meta: dict[str, Any]) -> dict[str, Any]:
        """The checkpoint's values of changed settings; InputError if they affect the result."""
        saved = TrainConfig.from_flat(**flatten(meta["config"])).flat()
        current = self.config.flat()
        changed = {n: saved.get(n) for n in current | saved if saved.get(n) != current.get(n)}
        changed.pop("data", None)  # compared by fingerprint below
        # If validation adapts the objective, its schedule affects the training.
        resumable = RESUMABLE if self.objective.state() else (*RESUMABLE, "validate_every")
        if invalid := sorted(changed.keys() - set(resumable)):
            longer = f"; to train the model further, use init {self.out} and a new output folder"
            raise InputError(
                f"{self.out} contains a run with different settings (different: "
                f"{', '.join(invalid)}); choose a different output folder, or use the settings of "
                f"that run. Only {', '.join(resumable)} may change"
                f"{longer if 'steps' in invalid else ''}",
                fields=("init", *invalid, *resumable),
            )
        if meta["data"] != self.data.fingerprint:
            raise InputError(
                f"{self.out} contains a run on different data than {self.data.name} (sequences or "
                f"vocabulary); choose a different output folder, or use the data of that run"
            )
        return changed


def _load_initial(model: DiT, init: DiT) -> None:
    """Load the weights of a trained network, which may not have the conditions of the model."""
    added = len(model.conditions) - len(init.config.conditions)
    if added:
        for embedding in model.conditions:
            cast(ConditionEmbedding, embedding).set_zero()
    result = model.load_state_dict(init.state_dict(), strict=not added)
    assert all(name.startswith("conditions.") for name in result.missing_keys)


def _check_data(config: TrainConfig, data: TokenData) -> None:
    """Raise an InputError if the data does not match the config."""
    name, train, valid = data.name, len(data.train), len(data.valid)
    length, train_rows = config.data.length, config.data.train_rows
    if data.length != length:
        raise InputError(
            f"{name} has sequences of {data.length} tokens, but the config has length {length}; "
            f"set length to {data.length}, or prepare the data again",
            fields=("length",),
        )
    if not train:
        part = data.source.get("part")
        remedy = "more data" if part is None else f"data prepared without part {part!r}"
        raise InputError(
            f"{name} has no training sequences: all {valid:,} are held out; use {remedy}"
        )
    if train_rows > train:
        raise InputError(
            f"train_rows {train_rows:,} exceeds the {train:,} training sequences of {name}; use at "
            f"most that many, or 0 for all",
            fields=("train_rows",),
        )
    if not valid:
        raise InputError(
            f"{name} has no validation sequences: all {train:,} are for training; use "
            f"data with a held-out split"
        )
