"""Speeds up Triton's interpreter: most of its time goes into types and checks, not into numbers.

Each patch applies only to versions of Triton that have the patched names.
"""

from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest


def speed_up(patch: pytest.MonkeyPatch) -> None:
    """Apply all patches."""
    interpreter: Any = import_module("triton.runtime.interpreter")
    core: Any = import_module("triton.language.core")
    semantic: Any = import_module("triton.language.semantic").TritonSemantic
    if hasattr(interpreter, "_patch_lang") and hasattr(interpreter, "_LangPatchScope"):
        patch_language_once(patch, interpreter)
    if hasattr(interpreter, "interpreter_builder"):
        skip_overflow_checks(patch, interpreter.interpreter_builder)
    if hasattr(interpreter, "_get_np_dtype"):
        cache_dtypes(patch, interpreter, core)
    if hasattr(core.block_type, "with_element_ty"):
        cache_blocks(patch, interpreter, core)
        cache_tensors(patch, core)
    if hasattr(semantic, "broadcast_impl_value"):
        skip_broadcasting(patch, semantic)


def patch_language_once(patch: pytest.MonkeyPatch, interpreter: Any) -> None:
    """Patch the language once per launch and module, not in every call within a kernel."""
    patch_lang, restore = interpreter._patch_lang, interpreter._LangPatchScope.restore
    patched: set[int] = set()  # modules, since the last launch ended

    def once(function: Any) -> Any:
        module = id(function.__globals__)
        if module in patched:
            return interpreter._LangPatchScope()
        patched.add(module)
        return patch_lang(function)

    def restored(scope: Any) -> None:
        patched.clear()
        restore(scope)

    patch.setattr(interpreter, "_patch_lang", once)
    patch.setattr(interpreter._LangPatchScope, "restore", restored)


def skip_overflow_checks(patch: pytest.MonkeyPatch, builder: Any) -> None:
    """Integer overflow is checked only when debugging."""
    options = getattr(builder, "options", None)
    if options is not None and not options.debug and hasattr(options, "sanitize_overflow"):
        patch.setattr(builder, "options", replace(options, sanitize_overflow=False))


def cache_dtypes(patch: pytest.MonkeyPatch, interpreter: Any, core: Any) -> None:
    """Cache NumPy's dtype of each type."""
    plain, known = interpreter._get_np_dtype, {}

    def np_dtype(of: Any) -> Any:
        scalar = of.scalar
        if scalar.is_ptr():
            return plain(of)
        if scalar.name not in known:
            known[scalar.name] = plain(scalar)
        return known[scalar.name]

    patch.setattr(interpreter, "_get_np_dtype", np_dtype)


def cache_blocks(patch: pytest.MonkeyPatch, interpreter: Any, core: Any) -> None:
    """Cache the type of blocks of one shape and element."""
    known: dict[tuple[object, ...], Any] = {}

    def block(element: Any, shape: Any) -> Any:
        if element.is_ptr():
            return core.block_type(element, shape)
        key = (element.name, *shape)
        if key not in known:
            known[key] = core.block_type(element, shape)
        return known[key]

    patch.setattr(core.block_type, "with_element_ty", lambda self, of: block(of, self.shape))
    builder = type(interpreter.interpreter_builder)
    if hasattr(builder, "get_block_ty"):
        patch.setattr(builder, "get_block_ty", lambda _, dtype, shape: block(dtype, shape))


def cache_tensors(patch: pytest.MonkeyPatch, core: Any) -> None:
    """Cache all attributes of a tensor except its data, by type."""
    plain = core.tensor.__init__

    def init(self: Any, handle: Any, of: Any) -> None:
        rest = of.__dict__.get("_rest_of_tensor")
        if rest is None:
            plain(self, handle, of)
            of._rest_of_tensor = {**self.__dict__, "handle": None}
        else:
            self.__dict__.update(rest)
            self.handle = handle

    patch.setattr(core.tensor, "__init__", init)


def skip_broadcasting(patch: pytest.MonkeyPatch, semantic: Any) -> None:
    """Skip broadcasting of blocks of equal shape."""
    plain = semantic.broadcast_impl_value

    def broadcast(self: Any, a: Any, b: Any) -> Any:
        if a.type.is_block() and b.type.is_block() and [*a.type.shape] == [*b.type.shape]:
            return a, b
        return plain(self, a, b)

    patch.setattr(semantic, "broadcast_impl_value", broadcast)
