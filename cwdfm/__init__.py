"""Context-weighted discrete flow matching: generative models over token sequences.

Training: data -> path -> model -> loss. Generation: source -> solver -> samples. The public names
are those of `cwdfm.api`, imported on first use because importing torch takes seconds.
"""

from typing import TYPE_CHECKING

from cwdfm.version import __version__ as __version__

if TYPE_CHECKING:
    from cwdfm.api import *
else:

    def __getattr__(name):
        """Import all public names, then look up this one."""
        # Do not import torch when a tool probes for __path__, _repr_html_ and the like.
        if "__all__" not in globals() and (name == "__all__" or not name.startswith("_")):
            from importlib import import_module

            api = vars(import_module("cwdfm.api"))
            public = {known: value for known, value in api.items() if not known.startswith("_")}
            globals().update(public, __all__=sorted(public))
        if name in globals():
            return globals()[name]
        raise AttributeError(f"module 'cwdfm' has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *__getattr__("__all__")})
