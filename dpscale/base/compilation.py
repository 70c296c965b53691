"""Compilation of loops by Numba at their first call, so that importing a module of loops does not import Numba.

A `Kernel` stands for the machine code of a function. At the first call it compiles the kernels that the function names,
puts their machine code into the globals in their place, and compiles the function. Imports of Numba and of its cached
code take 0.3 to 0.5 CPU seconds, which opening a release or planning marginals do not need.

By default, Numba writes machine code to `__pycache__` next to the source. pip does not know these files and leaves them
behind when the package is removed, and the remaining folder hides a later editable install. The machine code is
therefore written to `$NUMBA_CACHE_DIR`, else `$XDG_CACHE_HOME/dpscale/compiled`, else `~/.cache/dpscale/compiled`. If
none is writable, every process compiles again. A process that a user started says on stderr that it compiles.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, cached_property, update_wrapper
from pathlib import Path
from threading import RLock
from types import FunctionType, ModuleType
from typing import Any

Function = Callable[..., Any]

_lock = RLock()
announced = True  # whether compilations are announced
LEAST_SECONDS, EVERY_SECONDS = 1.0, 10.0  # of compiling before the first line, and between lines


class Kernel:
    """Function that is compiled at its first call.

    Parameters
    ----------
    function : callable
    signature : tuple
        Types for the machine code, or empty: one for the arguments of each call.
    settings : mapping of str to object
        Settings of `numba.config` while the function is compiled.
    few : int
        Number of entries of arrays, over all calls, up to which Python runs the function, because compiling it would
        take longer. Only products, quotients and sums of floats and 64-bit integers are the same without compilation.
    **options
        Options of `numba.njit`.
    """

    def __init__(
        self,
        function: Function,
        signature: tuple[object, ...],
        settings: dict[str, Any],
        few: int = 0,
        **options: Any,
    ) -> None:
        """Take a function and its settings; nothing is compiled yet, and `_dispatcher` is None until then."""
        update_wrapper(self, function)
        self.py_func, self._signature, self._settings, self._options = function, signature, settings, options
        self._few = few
        self._dispatcher: Any = None

    @property
    def dispatcher(self) -> Any:
        """Numba's function, which the first access compiles."""
        if self._dispatcher is None:
            with _lock:
                if self._dispatcher is None:
                    _compile_named(self.py_func)
                    self._dispatcher = self._compile()
        return self._dispatcher

    @cached_property
    def interpreted(self) -> Function:
        """The same function without machine code, for few steps: Python runs it and the kernels that it names."""
        return _interpreted(self.py_func)

    def __call__(self, *arguments: Any) -> Any:
        """Call the machine code, or Python's as long as there are few entries."""
        if self._few > 0 and self._dispatcher is None:
            self._few -= sum(getattr(argument, "size", 0) for argument in arguments)
            if self._few > 0:
                import numpy as np

                checked = self._options.get("error_model") == "python"
                with np.errstate(divide="raise" if checked else "ignore"):
                    return self.interpreted(*arguments)
        return (self._dispatcher or self.dispatcher)(*arguments)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of Numba's function."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.dispatcher, name)

    def __reduce__(self) -> tuple[Function, tuple[str, str]]:
        """Pickle by name: a worker compiles its own."""
        return _kernel, (self.py_func.__module__, self.py_func.__qualname__)

    def _compile(self) -> Any:
        """Return the function compiled by Numba, from its cache if this user has one."""
        import numba

        _listen()
        options, folder = dict(self._options), cache_folder() if self._options.get("cache") else None
        if folder is None:
            options.pop("cache", None)
        signature = () if options.get("inline") == "always" else self._signature  # compiled where it is inlined only
        with _configured({**self._settings, **({} if folder is None else {"CACHE_DIR": str(folder)})}):
            make: Any = numba.njit
            return make(*signature, **options)(self.py_func)


class Announcer:
    """Lines on stderr about the loops of this package that Numba compiles, rather than reads from its cache.

    They state what was done and no total, because the loops of later steps are not known.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._depth, self._began, self._next = clock, 0, 0.0, LEAST_SECONDS
        self.seconds, self.loops = 0.0, set[str]()

    def begin(self) -> None:
        """Note that a function is about to be compiled, perhaps within another one."""
        if not self._depth:
            self._began = self._clock()
        self._depth += 1
        self._announce()

    def end(self, function: Function) -> None:
        """Note that a function is compiled, which is a loop of this package or a part of Numba."""
        self._depth -= 1
        if function.__module__.startswith("dpscale."):
            self.loops.add(f"{function.__module__}.{function.__qualname__}")
        if not self._depth:
            self.seconds += self._clock() - self._began

    def _announce(self) -> None:
        """Print how many loops were compiled and how long it took, with EVERY_SECONDS or more between lines."""
        if not announced or self.seconds < self._next:
            return
        known = f"{len(self.loops)} in {self.seconds:.0f} s"
        first = self._next == LEAST_SECONDS
        text = f"compiling loops once for this user, {known} so far" if first else f"compiled loops, {known} so far"
        self._next = self.seconds + EVERY_SECONDS
        print(f"dpscale: {text}", file=sys.stderr, flush=True)


@cache
def _listen() -> None:
    """Announce compilations of this process, unless another process started it for its tasks."""
    from multiprocessing import parent_process

    from numba.core.event import Listener, register

    announcer = Announcer()

    class Compilations(Listener):
        def on_start(self, event: object) -> None:
            announcer.begin()

        def on_end(self, event: Any) -> None:
            announcer.end(event.data["dispatcher"].py_func)

    if parent_process() is None:
        register("numba:compile", Compilations())


def _kernel(module: str, name: str) -> Any:
    from importlib import import_module

    return getattr(import_module(module), name)


def _interpreted(function: Any) -> Function:
    """Return the function with plain Python in place of the kernels that it calls, at any depth."""
    space = dict(function.__globals__)
    for name in function.__code__.co_names:
        if inner := getattr(space.get(name), "py_func", None):
            space[name] = _interpreted(inner)
    return FunctionType(function.__code__, space, function.__name__, function.__defaults__, function.__closure__)


def _compile_named(function: Any) -> None:
    """Replace each `Kernel` that a function names by its dispatcher, because numba compiles calls of dispatchers alone.

    A kernel can be a global of the function's module, an attribute of a module that the function names, or a variable
    of its closure. The modules and the closure are changed in place.
    """
    names = function.__code__.co_names
    named = [function.__globals__.get(name) for name in names]
    modules = [value.__dict__ for value in named if isinstance(value, ModuleType)]
    for namespace in (function.__globals__, *modules):
        for name in names:
            value = namespace.get(name)
            if isinstance(value, Kernel):
                namespace[name] = value.dispatcher

    for cell in function.__closure__ or ():
        if isinstance(cell.cell_contents, Kernel):
            cell.cell_contents = cell.cell_contents.dispatcher


@contextmanager
def _configured(settings: dict[str, Any]) -> Iterator[None]:
    """Set values of `numba.config` for a while."""
    import numba

    config: Any = numba.config
    before = {name: getattr(config, name) for name in settings}
    try:
        for name, value in settings.items():
            setattr(config, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(config, name, value)


def njit(*signature: object, cache: bool = False, **options: Any) -> Callable[[Function], Any]:
    """Apply `numba.njit` at the first call, with a cache in the user's cache folder.

    Parameters
    ----------
    *signature
        Types of the machine code; without them, functions are compiled for the arguments of a call.
    cache : bool
        Cache the machine code on disk if a folder is writable.
    **options
        Options of `numba.njit`.
    """
    return lambda function: Kernel(function, signature, {}, cache=cache, **options)


def compiled(
    signature: str, inline: str = "never", slp: bool = False, checked: bool = True, few: int = 0
) -> Callable[[Function], Any]:
    """Compile for one signature, without the GIL; cache the machine code on disk if it is writable.

    Parameters
    ----------
    signature : str
    inline : str
    slp : bool
        Vectorise adjacent sums without reordering them.
    checked : bool
        Raise an error for a division by zero, which prevents vectorisation of loops that divide.
    few : int
        As in `Kernel`.
    """
    options: dict[str, Any] = {"nogil": True, "inline": inline, "error_model": "python" if checked else "numpy"}
    settings = {"SLP_VECTORIZE": 1} if slp else {}
    return lambda function: Kernel(
        function=function, signature=(signature,), settings=settings, few=few, cache=True, **options
    )


def cache_folder() -> Path | None:
    """Return a writable cache folder, or None."""
    named, caches = os.environ.get("NUMBA_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME")
    with suppress(OSError, RuntimeError):  # no write permission or no home folder
        folder = Path(named) if named else Path(caches or Path.home() / ".cache") / "dpscale" / "compiled"
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    return None
