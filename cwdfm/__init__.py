"""Context-weighted discrete flow matching: generative models over token sequences.

Training goes data -> path -> model -> loss; generation goes source -> solver -> samples.
"""

from cwdfm.errors import InputError
from cwdfm.generation import generate
from cwdfm.likelihood.bound import Bound
from cwdfm.likelihood.elbo import elbo
from cwdfm.loss import NELBO, Bregman, CrossEntropy, Loss, ScaledCrossEntropy
from cwdfm.model import Adapted, ExactPosterior, Model, SplitModel
from cwdfm.path import ContextPath, MixturePath, Path, PathSample
from cwdfm.postprocess import Refine, Reject, Resample, plausibility, refine, resample
from cwdfm.pretrained import Pretrained, bundled_models, load
from cwdfm.schedule import Cosine, Linear, Polynomial, Schedule, stratified_times, time_grid
from cwdfm.solver import (
    Corrector,
    EntropyBound,
    Euler,
    FirstHitting,
    Info,
    Samples,
    Solver,
    Start,
    State,
    TopK,
    sample,
)
from cwdfm.source import MaskSource, Source, UniformSource
from cwdfm.version import __version__
from cwdfm.weight import (
    Confidence,
    ContextWeight,
    Distance,
    Entropy,
    EntropyInverse,
    Margin,
    Neighbor,
    NeighborShare,
    PredictionWeight,
    Sum,
    Weight,
)

__all__ = [
    "NELBO",
    "Adapted",
    "Bound",
    "Bregman",
    "Confidence",
    "ContextPath",
    "ContextWeight",
    "Corrector",
    "Cosine",
    "CrossEntropy",
    "Distance",
    "Entropy",
    "EntropyBound",
    "EntropyInverse",
    "Euler",
    "ExactPosterior",
    "FirstHitting",
    "Info",
    "InputError",
    "Linear",
    "Loss",
    "Margin",
    "MaskSource",
    "MixturePath",
    "Model",
    "Neighbor",
    "NeighborShare",
    "Path",
    "PathSample",
    "Polynomial",
    "PredictionWeight",
    "Pretrained",
    "Refine",
    "Reject",
    "Resample",
    "Samples",
    "ScaledCrossEntropy",
    "Schedule",
    "Solver",
    "Source",
    "SplitModel",
    "Start",
    "State",
    "Sum",
    "TopK",
    "UniformSource",
    "Weight",
    "__version__",
    "bundled_models",
    "elbo",
    "generate",
    "load",
    "plausibility",
    "refine",
    "resample",
    "sample",
    "stratified_times",
    "time_grid",
]
