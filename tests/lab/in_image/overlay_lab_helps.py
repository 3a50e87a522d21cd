"""Help real SGLang to import without CUDA. This file runs inside the lab's torch base only.

Loaded by a `.pth` file at every start of the interpreter, so it imports nothing heavy itself:
it waits until somebody imports torchvision or triton.
"""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

#: Kept: operators live as long as the library that defines them.
_libraries: list[Any] = []


class _TorchvisionSchemas(MetaPathFinder):
    """Define the operators that torchvision registers kernels for when it is imported.

    Its build expects a CUDA torch beside it; on a CPU torch its library with the schemas does
    not load, and registering a kernel without a schema is an error.
    """

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            _define_operators()


def _define_operators() -> None:
    from torch.library import Library

    library = Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _libraries.append(library)


class _Inert:
    """Stand for anything in triton: a decorator, a constant, a type in an annotation."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Inert()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # As a bare decorator it hands back the function; with arguments, another decorator.
        if len(args) == 1 and not kwargs and callable(args[0]):
            return args[0]
        return self

    def __getitem__(self, key: Any) -> Any:
        return self

    def __or__(self, other: Any) -> Any:
        return self

    __ror__ = __or__


class _NoDriver:
    @property
    def active(self) -> None:
        # What the real one says on a machine without a GPU; callers go on with the CPU.
        raise RuntimeError("0 active drivers ([]). There should only be one.")


class _Runtime(_Inert):
    driver = _NoDriver()


class _InertModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = self._made(name)
        setattr(self, name, made)
        return made

    def _made(self, name: str) -> Any:
        if name == "runtime":
            return _Runtime()
        if name == "driver":
            return _Runtime.driver
        # A name in capitals is asked for by isinstance() or subclassed: it has to be a class.
        return type(name, (_Inert,), {}) if name[0].isupper() else _Inert()


class _Triton(MetaPathFinder, Loader):
    """Answer `triton` and every module below it: the real one is 1 GB and needs a GPU."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] != "triton":
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _InertModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(__version__="3.5.0", __path__=[])


def install() -> None:
    """Put both in front of the ordinary finders."""
    sys.meta_path[:0] = [_TorchvisionSchemas(), _Triton()]
