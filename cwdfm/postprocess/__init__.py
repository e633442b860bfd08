"""Postprocessing of finished samples: refine, resample, reject."""

from cwdfm.postprocess.base import Postprocess
from cwdfm.postprocess.refine import Refine, refine
from cwdfm.postprocess.reject import Reject, plausibility
from cwdfm.postprocess.resample import Resample, resample

__all__ = ["Postprocess", "Refine", "Reject", "Resample", "plausibility", "refine", "resample"]
