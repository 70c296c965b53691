"""Engines: threads, processes, the calling thread (all by Dask's local schedulers), or a `distributed` cluster.

An engine maps a function over items, and reduces lists of arrays over a tree. What a reduction leaves is a *handle*:
the array itself locally, a future on a cluster, to be given to a later map without passing through the driver.
"""

from __future__ import annotations

import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from typing import Any

from dpscale.engine.discretion import Discreet, lost_workers
from dpscale.errors import JobError, TransientError

Progress = Callable[[str, int, int], None]
Graph = dict[Any, Any]
LOCAL = ("threads", "processes", "synchronous")
FAN_IN = 8
CONNECT_SECONDS = 20


def silent(label: str, done: int, total: int) -> None:
    """A progress function that shows nothing."""


class Engine(ABC):
    """Where tasks run. `workers` is how many run at once; `label`s name what a progress bar shows."""

    workers: int
    progress: Progress

    def map(self, function: Callable[..., Any], items: Iterable[Any], label: str = "map") -> list[Any]:
        """function(item) for every item, in order; a tuple item is spread over the arguments."""
        spread = [item if isinstance(item, tuple) else (item,) for item in items]
        graph = {(label, i): (Discreet(function), *map(_literal, item)) for i, item in enumerate(spread)}
        return self._results(graph, list(graph), label)

    def keep(self, function: Callable[..., Any], items: Iterable[tuple[Any, ...]], label: str = "keep") -> list[Any]:
        """function(*item) for every item, left where it was made: a handle each."""
        graph = {(label, i): (Discreet(function), *map(_literal, item)) for i, item in enumerate(items)}
        return self._handles(graph, list(graph), label)

    def each(self, label: str) -> Callable[[Callable[..., Any], Iterable[Any]], list[Any]]:
        """`map` under a label, in the shape that the rooms of mathematics take."""
        return partial(self._each, label)

    def _each(self, label: str, function: Callable[..., Any], items: Iterable[Any]) -> list[Any]:
        return self.map(function, [(item,) for item in items], label)

    def reduce(
        self,
        function: Callable[..., Sequence[Any]],
        items: Sequence[tuple[Any, ...]],
        parts: int,
        label: str = "reduce",
    ) -> list[Any]:
        """Sum over items of function(*item), a list of `parts` arrays: one handle for each part."""
        graph: Graph = {(label, i): (Discreet(function), *map(_literal, item)) for i, item in enumerate(items)}
        roots = []
        for part in range(parts):
            level: list[Any] = []
            for i in range(len(items)):
                graph[label, "part", i, part] = (_take, (label, i), part)
                level.append((label, "part", i, part))
            roots.append(_tree(graph, level, (label, "sum", part)))
        return self._handles(graph, roots, label, list(graph)[: len(items)])

    @abstractmethod
    def _results(self, graph: Graph, keys: list[Any], label: str) -> list[Any]: ...

    @abstractmethod
    def _handles(self, graph: Graph, keys: list[Any], label: str, shown: list[Any] | None = None) -> list[Any]:
        """The results of `keys` as handles; `shown` are the tasks that progress counts, `keys` unless told."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what the engine itself opened."""


class LocalEngine(Engine):
    """Dask's own schedulers on this machine."""

    def __init__(self, scheduler: str = "threads", workers: int | None = None, progress: Progress = silent) -> None:
        self.scheduler, self.progress = scheduler, progress
        self.workers = 1 if scheduler == "synchronous" else workers or len(os.sched_getaffinity(0))

    def _results(self, graph: Graph, keys: list[Any], label: str, shown: list[Any] | None = None) -> list[Any]:
        if not keys:
            return []
        counted = set(keys if shown is None else shown)
        with lost_workers(BrokenProcessPool), _shown(self.progress, label, len(counted), counted):
            return list(self._get()(graph, keys, num_workers=self.workers))

    _handles = _results

    def close(self) -> None:
        """Nothing to let go of: Dask's local schedulers hold nothing between calls."""

    def _get(self) -> Callable[..., Any]:
        import dask.local
        import dask.multiprocessing
        import dask.threaded

        schedulers = {
            "threads": dask.threaded.get,
            "processes": dask.multiprocessing.get,
            "synchronous": dask.local.get_sync,
        }
        return schedulers[self.scheduler]  # type: ignore[return-value]


class ClusterEngine(Engine):
    """An existing `distributed` cluster; `owned` clients are closed with the engine."""

    def __init__(self, client: Any, progress: Progress = silent, owned: bool = False) -> None:
        self.client, self.progress, self._owned = client, progress, owned
        self._name, self._runs = secrets.token_hex(8), 0

    @property
    def workers(self) -> int:  # type: ignore[override]
        return max(1, sum(self.client.nthreads().values()))

    def _handles(self, graph: Graph, keys: list[Any], label: str, shown: list[Any] | None = None) -> list[Any]:
        self._runs += 1  # fresh keys: a cluster remembers results by key, also those of an earlier job
        own = {key: f"dpscale-{self._name}-{self._runs}-{'-'.join(map(str, key))}" for key in graph}
        renamed = {own[key]: _renamed(task, own) for key, task in graph.items()}
        return list(self.client.get(renamed, [own[key] for key in keys], sync=False, retries=3))

    def _results(self, graph: Graph, keys: list[Any], label: str) -> list[Any]:
        from distributed import KilledWorker, as_completed

        if not keys:
            return []
        futures = self._handles(graph, keys, label)
        for done, _ in enumerate(as_completed(futures), start=1):
            self.progress(label, done, len(futures))
        with lost_workers(KilledWorker):
            return list(self.client.gather(futures))

    def close(self) -> None:
        if self._owned:
            self.client.close()


def resolve(client: Any = None, scheduler: str | None = None, progress: Progress = silent) -> Engine:
    """The engine: `client`, else `scheduler`, else the ambient `distributed` client, else threads."""
    if client is not None:
        return ClusterEngine(client, progress)
    if scheduler in LOCAL:
        return LocalEngine(scheduler or "threads", progress=progress)
    if scheduler is not None:
        return ClusterEngine(_connect(scheduler), progress, owned=True)
    ambient = _ambient_client()
    return ClusterEngine(ambient, progress) if ambient is not None else LocalEngine(progress=progress)


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """A client of an existing cluster, closed afterwards."""
    client = _connect(address)
    try:
        yield client
    finally:
        client.close()


def _connect(address: str) -> Any:
    if not address.startswith(("tcp://", "tls://")):
        takes = f"{', '.join(LOCAL)}, tcp://HOST:PORT or tls://HOST:PORT"
        raise JobError("engine.scheduler", f"{address!r}", takes, "mend it")
    from distributed import Client

    try:
        return Client(address, timeout=CONNECT_SECONDS)
    except (OSError, TimeoutError, ValueError) as error:
        raise TransientError(
            "engine.scheduler",
            f"no answer from {address} ({type(error).__name__})",
            "the address of a running Dask scheduler",
            "start it, or check host and port",
        ) from None


def _ambient_client() -> Any:
    import sys

    if "distributed" not in sys.modules:
        return None
    from distributed import get_client

    try:
        return get_client()
    except ValueError:
        return None


def _literal(value: Any) -> Any:
    """An argument that Dask must not read as a key or a task; futures pass as they are."""
    if type(value).__module__.startswith("distributed"):
        return value
    return (_Literal(value),)


class _Literal:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self) -> Any:
        return self.value

    def __repr__(self) -> str:
        return "argument"


def _take(results: Sequence[Any], part: int) -> Any:
    return results[part]


def _total(*arrays: Any) -> Any:
    total = arrays[0]
    for array in arrays[1:]:
        total = total + array
    return total


def _tree(graph: Graph, level: list[Any], name: tuple[Any, ...]) -> Any:
    """Add a tree of sums over the keys to the graph; its root."""
    depth = 0
    while len(level) > 1:
        groups = [level[i : i + FAN_IN] for i in range(0, len(level), FAN_IN)]
        level = []
        for i, group in enumerate(groups):
            graph[(*name, depth, i)] = (_total, *group)
            level.append((*name, depth, i))
        depth += 1
    return level[0]


def _renamed(task: tuple[Any, ...], own: dict[Any, str]) -> tuple[Any, ...]:
    """The task with its dependencies under the cluster's names (dependencies are keys of the same graph)."""
    return tuple(own[item] if _is_key(item, own) else item for item in task)


def _is_key(item: Any, own: dict[Any, str]) -> bool:
    return isinstance(item, tuple) and not any(isinstance(part, _Literal) for part in item) and item in own


@contextmanager
def _shown(progress: Progress, label: str, total: int, keys: set[Any]) -> Iterator[None]:
    """Report finished tasks of a local scheduler."""
    from dask.callbacks import Callback

    done = 0

    def finished(key: Any, result: Any, graph: Any, state: Any, worker: Any) -> None:
        nonlocal done
        done += key in keys
        progress(label, done, total)

    with Callback(posttask=finished):
        yield
