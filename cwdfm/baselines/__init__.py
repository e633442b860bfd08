"""The methods that flows are compared with, and `METHODS`, the registry of all methods.

To add a baseline, write a module or package with its `Method`, `Objective` and `MethodConfig`, and
add the config to `METHODS`.
"""

from cwdfm.baselines.autoregressive import AutoregressiveConfig
from cwdfm.baselines.bd3lm.objective import BD3LMConfig
from cwdfm.baselines.sedd.objective import SEDDConfig
from cwdfm.method.base import MethodConfig
from cwdfm.method.flow_config import FlowConfig, MDLMConfig

# All methods by name, as used by training, saved models and the command line.
METHODS: dict[str, type[MethodConfig]] = {
    "flow": FlowConfig,
    "mdlm": MDLMConfig,
    "sedd": SEDDConfig,
    "bd3lm": BD3LMConfig,
    "ar": AutoregressiveConfig,
}
