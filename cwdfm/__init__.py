"""Context-weighted discrete flow matching: generative models over token sequences.

Training goes data -> path -> model -> loss; generation goes source -> solver -> samples. What these
modules list in `__all__` is exported here too.
"""

from cwdfm.errors import InputError as InputError
from cwdfm.generation import generate as generate
from cwdfm.likelihood.bound import Bound as Bound
from cwdfm.likelihood.elbo import elbo as elbo
from cwdfm.loss import *
from cwdfm.model import *
from cwdfm.path import *
from cwdfm.postprocess import *
from cwdfm.pretrained import *
from cwdfm.schedule import *
from cwdfm.solver import *
from cwdfm.solver_config import make_solver as make_solver
from cwdfm.source import *
from cwdfm.version import __version__ as __version__
from cwdfm.weight import *
