"""The Frechet ChemNet distance (Preuer et al. 2018).

ChemNet maps a SMILES string to 512 activations. The distance between two sets of molecules is
the Frechet distance between normal distributions with the means and covariances of the activations:

    |m_1 - m_2|^2 + tr(C_1 + C_2 - 2 (C_1 C_2)^(1/2))
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from cwdfm.device import find_device
from cwdfm.errors import load_extra

_BATCH = 256  # molecules


@dataclass(frozen=True, eq=False)
class Moments:
    """Mean [D] and covariance [D, D] of activations."""

    mean: NDArray[np.float64]
    covariance: NDArray[np.float64]

    @classmethod
    def of(cls, x_ND: NDArray[np.floating[Any]], weights_N: NDArray[Any] | None = None) -> Self:
        """The moments of at least two rows; integer weights say how often each row is repeated."""
        mean_D = np.average(x_ND, axis=0, weights=weights_N)
        return cls(mean_D, np.cov(x_ND, rowvar=False, fweights=weights_N))

    @cached_property
    def root(self) -> NDArray[np.float64]:
        """The symmetric square root of the covariance."""
        values, vectors = np.linalg.eigh(self.covariance)
        root: NDArray[np.float64] = (vectors * np.sqrt(values.clip(0))) @ vectors.T
        return root

    def distance(self, other: "Moments") -> float:
        """The Frechet distance. tr (C_1 C_2)^(1/2) = tr (R C_2 R)^(1/2), where R^2 = C_1."""
        product = self.root @ other.covariance @ self.root
        trace = np.sqrt(np.linalg.eigvalsh(product).clip(0)).sum()
        spread = np.trace(self.covariance) + np.trace(other.covariance) - 2 * trace
        return float(np.square(self.mean - other.mean).sum() + spread)


def activations(
    smiles: Sequence[str], progress: Callable[[int], object] = lambda _: None
) -> NDArray[np.float32]:
    """Compute ChemNet's activations [n, 512] for canonical SMILES.

    progress: called with the number of molecules done.
    """
    encoded = load_extra("fcd_torch.utils", "molecules").SmilesDataset(smiles, canonize=False)
    device = find_device("auto")
    model = _chemnet().to(device)
    parts = [np.empty((0, 512), np.float32)]
    for start in range(0, len(smiles), _BATCH):
        rows = [encoded[i] for i in range(start, min(start + _BATCH, len(smiles)))]
        x_BKL = torch.from_numpy(np.stack(rows)).float().transpose(1, 2)
        with torch.inference_mode():
            parts.append(model(x_BKL.to(device)).cpu().numpy())
        progress(start + len(rows))
    return np.concatenate(parts)


@cache
def _chemnet() -> Any:
    """ChemNet, with the weights of the package fcd_torch."""
    return load_extra("fcd_torch", "molecules").FCD(device="cpu").model
