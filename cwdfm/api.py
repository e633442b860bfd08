"""The public names of the package: everything that the packages below list in `__all__`."""

from cwdfm.errors import InputError as InputError
from cwdfm.generation import generate as generate
from cwdfm.guidance import *
from cwdfm.likelihood.bound import Bound as Bound
from cwdfm.likelihood.elbo import elbo as elbo
from cwdfm.loss import *
from cwdfm.model import *
from cwdfm.path import *
from cwdfm.postprocess import *
from cwdfm.pretrained import *
from cwdfm.recommendation import Recommendation as Recommendation
from cwdfm.recommendation import recommend as recommend
from cwdfm.schedule import *
from cwdfm.solver import *
from cwdfm.solver_config import make_solver as make_solver
from cwdfm.source import *
from cwdfm.weight import *
