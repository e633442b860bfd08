"""Triton's interpreter with less work for the same results.

Most of its time goes into types and checks, not into numbers. Versions that do it otherwise are
left alone, and slow.
"""

from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest


def hasten(patch: pytest.MonkeyPatch) -> None:
    """Have kernels interpreted faster while `patch` holds."""
    interpreter: Any = import_module("triton.runtime.interpreter")
    core: Any = import_module("triton.language.core")
    semantic: Any = import_module("triton.language.semantic").TritonSemantic
    if hasattr(interpreter, "_patch_lang") and hasattr(interpreter, "_LangPatchScope"):
        patch_language_once(patch, interpreter)
    if hasattr(interpreter, "interpreter_builder"):
        assert_overflow_only_to_be_told(patch, interpreter.interpreter_builder)
    if hasattr(interpreter, "_get_np_dtype"):
        know_dtypes(patch, interpreter, core)
    if hasattr(core.block_type, "with_element_ty"):
        know_blocks(patch, interpreter, core)
        know_tensors(patch, core)
    if hasattr(semantic, "broadcast_impl_value"):
        broadcast_what_differs(patch, semantic)


def patch_language_once(patch: pytest.MonkeyPatch, interpreter: Any) -> None:
    """The interpreter goes through its whole language once a launch and module of kernels.

    By itself it does so in each call of one function by another within a kernel, which finds all as
    it should be.
    """
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


def assert_overflow_only_to_be_told(patch: pytest.MonkeyPatch, builder: Any) -> None:
    """Whether integers overflow is found out for assertions, which only debugging has."""
    options = getattr(builder, "options", None)
    if options is not None and not options.debug and hasattr(options, "sanitize_overflow"):
        patch.setattr(builder, "options", replace(options, sanitize_overflow=False))


def know_dtypes(patch: pytest.MonkeyPatch, interpreter: Any, core: Any) -> None:
    """NumPy's dtype of a type is looked up, in a table that is made once and not every time."""
    plain, known = interpreter._get_np_dtype, {}

    def np_dtype(of: Any) -> Any:
        scalar = of.scalar
        if scalar.is_ptr():
            return plain(of)
        if scalar.name not in known:
            known[scalar.name] = plain(scalar)
        return known[scalar.name]

    patch.setattr(interpreter, "_get_np_dtype", np_dtype)


def know_blocks(patch: pytest.MonkeyPatch, interpreter: Any, core: Any) -> None:
    """Blocks of one shape and element have one type, made once."""
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


def know_tensors(patch: pytest.MonkeyPatch, core: Any) -> None:
    """Tensors of one type differ in their numbers alone."""
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


def broadcast_what_differs(patch: pytest.MonkeyPatch, semantic: Any) -> None:
    """Two blocks of one shape are what broadcasting makes of them."""
    plain = semantic.broadcast_impl_value

    def broadcast(self: Any, a: Any, b: Any) -> Any:
        if a.type.is_block() and b.type.is_block() and [*a.type.shape] == [*b.type.shape]:
            return a, b
        return plain(self, a, b)

    patch.setattr(semantic, "broadcast_impl_value", broadcast)
