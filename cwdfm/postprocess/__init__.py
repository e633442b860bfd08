"""Postprocessing of finished samples: refine, resample, reject."""

from cwdfm.postprocess.base import Rework
from cwdfm.postprocess.refine import Refine, refine
from cwdfm.postprocess.reject import Accept, plausibility
from cwdfm.postprocess.resample import Mend, mend

__all__ = ["Accept", "Mend", "Refine", "Rework", "mend", "plausibility", "refine"]
