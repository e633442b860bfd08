"""The loss of a network in training mode and in evaluation mode, on the same inputs."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cwdfm.loss import CrossEntropy
from cwdfm.path import MixturePath
from cwdfm.pretrained import Pretrained
from cwdfm.schedule import stratified_times
from cwdfm.trained import auto_batch_size, prompt_tokens
from experiments.store import Store
from experiments.tasks.base import Resources, Result, Task
from experiments.tasks.train import Train, load_corpus, load_model


@dataclass(frozen=True)
class LossModes(Task):
    """Cross-entropy of held-out sequences, in nats per token, in both modes of the network.

    The modes differ only in dropout. "path" averages over times, "start" is the loss of fully
    noised sequences. Both are means over `draws` copies of each sequence, with different noise and
    times.
    """

    model: Train
    rows: int
    draws: int = 4
    seed: int = 0
    at: int | None = None  # training step of the snapshot; None: the final model

    def run(self, folder: Path, store: Store, resources: Resources) -> Result:
        trained = load_model(self.model, store, resources, self.at)
        data = load_corpus(self.model.corpus, self.model.recipe.length, store, resources)
        rows_BN = torch.from_numpy(data.valid[: self.rows].astype(np.int64))
        rows_BN = rows_BN.to(resources.torch_device())
        torch.manual_seed(self.seed)
        found = {}
        for mode, training in (("training", True), ("evaluation", False)):
            trained.model.train(training)
            sums = torch.zeros(2, dtype=torch.float64)
            for draw in range(self.draws):
                for index_B in torch.arange(len(rows_BN)).split(auto_batch_size(trained)):
                    index_B = index_B.to(rows_BN.device)
                    sums += self._losses(trained, rows_BN, index_B, draw) * len(index_B)
            path, start = (sums / self.draws / len(rows_BN)).tolist()
            found[mode] = {"path": path, "start": start}
        return found

    @torch.no_grad()
    def _losses(self, trained: Pretrained, rows_BN: Tensor, index_B: Tensor, draw: int) -> Tensor:
        """The loss of one batch at stratified times, and at t = 0."""
        path = MixturePath(trained.source, trained.schedule)
        times_B = stratified_times(self.seed, draw, index_B, len(rows_BN))
        _, given_N = prompt_tokens(trained)
        fixed_BN = None if given_N is None else given_N.to(index_B.device).expand_as(rows_BN)

        def loss(t_B: Tensor) -> float:
            given_BN = None if fixed_BN is None else fixed_BN[index_B]
            batch = path.sample(
                rows_BN[index_B], t_B, seed=self.seed, step=draw, index=index_B, fixed=given_BN
            )
            logits_BNV = trained.model(batch.x_t, batch.t)
            return float(CrossEntropy()(logits_BNV, batch, trained.schedule))

        return torch.tensor([loss(times_B), loss(torch.zeros_like(times_B))], dtype=torch.float64)
