"""Context-weighted discrete flow matching: generative models over token sequences.

Training goes data -> path -> model -> loss; generation goes source -> solver -> samples. The public
names are those of `cwdfm.api`. They are imported when the first of them is used, because torch
takes seconds to import.
"""

from typing import TYPE_CHECKING

from cwdfm.version import __version__ as __version__

if TYPE_CHECKING:
    from cwdfm.api import *
else:

    def __getattr__(name):
        """Import all public names, then look up this one."""
        # Tools ask for names such as __path__ or _repr_html_, which are no reason to import torch.
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
