"""Engine on an existing `distributed` cluster.

Task keys are readable and contain no argument: `dpscale-count-<random>` and a number. A map submits a few batches per
thread, at most some thousands, and submits more as they finish, so the scheduler needs the same memory for a million
items as for a thousand. A batch is released as soon as its results have arrived. A reduction is one graph, whose size
`counting` bounds. The scheduler remembers its tasks while a handle exists, because Dask recomputes a lost sum from
them.
"""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any

from dpscale.base.error_redaction import accepted
from dpscale.engine import connect
from dpscale.engine.base import Engine, Progress, silent, spread
from dpscale.engine.connect import await_worker
from dpscale.engine.graphs import Graph, calls, exchanges, literal, sums
from dpscale.engine.message_chunks import batch_graph, call_graphs, cut, deliveries, dumped, fetched, joined
from dpscale.engine.task_sizing import Batches, message_of
from dpscale.engine.waiting import Discreet, Watch, dependable, lost_scheduler, settle
from dpscale.storage.files import place
from dpscale.storage.scratch import Use, end

RETRIES = 3
MOST_TASKS = 4000  # of a map, on the scheduler at once
A_THREAD, LEAST_TASKS = 4, 32
FRESH_SECONDS = 1.0  # for which an answer about threads will do where it decides nothing but sizes
SMALL = 1 << 18  # bytes that go along with every task that needs them
RESOURCE = "MEMORY"  # bytes; asked for where every worker declares it


class ClusterEngine(Engine):
    """Engine on an existing `distributed` cluster.

    Parameters
    ----------
    client : distributed.Client
    progress : callable
    owned : bool
        Whether `close` also closes the client.
    priority : int
        Of two jobs on a cluster, the tasks of the job with the higher priority run first.
    """

    def __init__(self, client: Any, progress: Progress = silent, owned: bool = False, priority: int = 0) -> None:
        self.client, self.progress, self.priority, self._owned = client, progress, priority, owned
        self._name, self._runs = secrets.token_hex(8), 0
        self._paces: dict[str, float | None] = {}
        self._known: set[str] = set()
        self._threads, self._asked = dict[str, int](), -FRESH_SECONDS

    @property
    def workers(self) -> int:  # type: ignore[override]
        """Current number of threads of all workers."""
        self._check_open()
        with dependable(self.client, "start"):
            return max(1, sum(self._nthreads().values()))

    def _nthreads(self, refresh: bool = False) -> dict[str, int]:
        """Return the threads of each worker, from an answer that is at most FRESH_SECONDS old."""
        if refresh or monotonic() - self._asked > FRESH_SECONDS:
            self._threads, self._asked = dict(self.client.nthreads()), monotonic()
        return self._threads

    def map(
        self, function: Callable[..., Any], items: Iterable[Any], label: str = "map", memory: int | None = None
    ) -> list[Any]:
        """Return function(item) for every item, in order; a tuple item is unpacked into the arguments."""
        arguments = spread(items)
        results: list[Any] = [None] * len(arguments)
        batches = Batches(arguments, self.workers, self._paces.get(label))
        flow = self._flow(Discreet(function), batches, label, memory)
        with dependable(self.client, label), _waiting(), closing(flow):
            self._check_new()
            done = 0
            for start, (seconds, values) in flow:
                results[start : start + len(values)] = values
                batches.learn(len(values), seconds)
                done += len(values)
                self.progress(label, done, len(results))
        self._paces[label] = batches.pace
        accepted(results)
        return results

    def _flow(
        self, function: Discreet, batches: Batches, label: str, memory: int | None
    ) -> Generator[tuple[int, tuple[float, list[Any]]], None, None]:
        """Run batches, a limited number at once, and yield the start and the result of each as it finishes."""
        watch, name, resources = Watch(self.client), self._named(label), self._resources(memory)
        window = min(max(LEAST_TASKS, A_THREAD * self.workers), MOST_TASKS)
        pending: dict[Any, int] = {}
        try:
            while batches.left or pending:
                while batches.left and len(pending) <= window // 2:
                    graph, handles = batch_graph(function, batches, window - len(pending), name, self.sent)
                    futures = self._submit(graph, list(graph), resources, later=handles)
                    pending.update({future: future.key[1] for future in futures})
                    watch.add(futures)
                    settle(self.client) if len(pending) < window else None
                for ended in deliveries(watch.next()):
                    yield from zip(
                        [pending[future] for future in ended], fetched(ended, watch.gather, self._one), strict=True
                    )
                    for future in ended:
                        del pending[future]
                        future.release()
        finally:
            for future in pending:
                future.release()

    def _one(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the result of one small task."""
        key, watch = (self._named("fetch"), 0), Watch(self.client)
        watch.add(self._submit({key: (Discreet(function), *map(literal, arguments))}, [key], None, later=True))
        return watch.gather(watch.next())[0]

    def reduce(
        self,
        function: Callable[..., Sequence[Any]],
        items: Sequence[tuple[Any, ...]],
        parts: int,
        label: str = "reduce",
        memory: int | None = None,
        pieces: Sequence[range] | None = None,
        apart: bool = False,
    ) -> list[Any]:
        """Sum lists of `parts` arrays over items; return a future for each part once all are finished."""
        asked = pieces or [range(parts)]
        graph, _, roots = sums(function, items, asked, self._kinds(label), apart)
        handles = self._kept([(graph, roots)], label, memory)
        told = [handles[piece.start] for piece in asked] if apart else handles[:1]  # else a refusal is in every part
        self.map(_nothing, [(handle,) for handle in told], "check")
        return handles

    def keep(
        self, function: Callable[..., Any], items: Iterable[tuple[Any, ...]], label: str = "keep",
        memory: int | None = None,
    ) -> list[Any]:  # fmt: skip
        """Call function(*item) for every item; return futures once all are finished. Results stay on the workers."""
        with dependable(self.client, label):
            graphs = call_graphs(Discreet(function), list(items), self._named(label), self.sent)
        return self._kept([(graph, list(graph)) for graph in graphs], label, memory)

    def exchange(
        self, take: Callable[..., Any], kept: Sequence[Any], join: Callable[..., Any], count: int,
        label: str = "exchange",
    ) -> list[Any]:  # fmt: skip
        """Return join([take(handle, number) for all handles]) for every number; parts travel between workers directly.

        If a value is lost with its worker, Dask recomputes it from its task.
        """
        results: list[Any] = []
        with dependable(self.client, label), _waiting():
            self._check_new()
            at_once = min(A_THREAD * self.workers, max(MOST_TASKS // len(kept), self.workers))
            while len(results) < count:
                numbers = range(len(results), min(len(results) + at_once, count))
                results += self._exchanged(take, kept, join, numbers, self._kinds(label))
                accepted(results[-len(numbers) :])
                self.progress(label, len(results), count)
        return results

    def _exchanged(
        self, take: Callable[..., Any], kept: Sequence[Any], join: Callable[..., Any], numbers: range,
        named: Callable[[str], str],
    ) -> list[Any]:  # fmt: skip
        graph, keys = exchanges(take, kept, join, numbers, named)
        futures, watch = self._submit(graph, keys, None), Watch(self.client)
        watch.add(futures)
        for _ in watch.all(len(futures)):
            pass
        return watch.gather(futures)

    def sent(self, values: Sequence[Any], label: str = "send") -> list[Any]:
        """Return futures of values that tasks return, so that a value lost with its worker is sent again.

        Values are sent in messages of limited size.
        """
        handles: list[Any] = []
        while len(handles) < len(values):
            items = [(value,) for value in message_of(values[len(handles) :])]
            graph = calls(_itself, items, self._named(label))
            handles += self._kept([(graph, list(graph))], label, None)
        return handles

    def shared(self, value: Any, label: str = "send") -> Any:
        """Return a small value itself and a future of a large one, which is sent to the scheduler once, in pieces."""
        data = dumped(value)
        return value if len(data) <= SMALL else self.keep(joined, [tuple(self.sent(cut(data), label))], label)[0]

    @contextmanager
    def scratch(self) -> Iterator[Use]:
        """Yield a use of temporary files; a file is removed with the worker that wrote it or at the end."""
        use = Use()
        try:
            yield use
        finally:
            with suppress(Exception):  # the scheduler is lost, and its workers let go of all
                self.client.run(end, use, on_error="ignore")

    def _kept(self, graphs: Sequence[tuple[Graph, list[Any]]], label: str, memory: int | None) -> list[Any]:
        with dependable(self.client, label), _waiting():
            self._check_new()
            resources, watch = self._resources(memory), Watch(self.client)
            handles: list[Any] = []
            for graph, keys in graphs:
                settle(self.client) if handles else None
                handles += self._submit(graph, keys, resources)
            watch.add(handles)
            for done in watch.all(len(handles)):
                self.progress(label, done, len(handles))
        return handles

    def _submit(
        self, graph: Graph, keys: list[Any], resources: dict[str, int] | None, later: bool = False
    ) -> list[Any]:
        """Return futures of some keys; tasks that consume handles have priority, which releases their memory early."""
        self._check_open()
        priority = self.priority * 2 + later
        with warnings.catch_warnings():  # of large graphs: their size may tell how many rows are left out
            warnings.simplefilter("ignore", UserWarning)
            return self._futures(graph, keys, priority, resources)

    def _futures(self, graph: Graph, keys: list[Any], priority: int, resources: dict[str, int] | None) -> list[Any]:
        return list(self.client.get(graph, keys, sync=False, retries=RETRIES, priority=priority, resources=resources))

    def _check_open(self) -> None:
        """Raise TransientError if the client is closed; a client that lost its scheduler for good closes itself."""
        if self.client.status == "closed":
            raise lost_scheduler()

    def _kinds(self, label: str) -> Callable[[str], str]:
        token = self._token()
        return lambda kind: "-".join(["dpscale", label, *([kind] if kind else []), token])

    def _named(self, label: str) -> str:
        return self._kinds(label)("")

    def _token(self) -> str:
        """Return a fresh token; a cluster remembers results by key, including those of an earlier job."""
        self._runs += 1
        return f"{self._name}{self._runs}"

    def _resources(self, memory: int | None) -> dict[str, int] | None:
        """Return the memory to request, at most that of the smallest worker; None unless all workers declare it."""
        declared = connect.declared(self.client, RESOURCE) if memory else None
        return {RESOURCE: min(memory, declared)} if memory and declared else None

    def check_workers(self) -> None:
        """Wait for a first worker; raise JobError if the versions of a worker differ from those of this process."""
        with dependable(self.client, "check"), _waiting():
            await_worker(self.client)
            self._check_new()

    def _check_new(self) -> None:
        """Check the versions of workers that joined since the last check; an autoscaled one may have an older image."""
        present = set(self._nthreads(refresh=True))
        if new := present - self._known:
            connect.check_versions(self.client, sorted(new))
        self._known = present

    def check_room(self, needed: int, what: str) -> None:
        """Raise PlanError if a task on `what` that needs `needed` bytes does not fit the smallest worker."""
        with dependable(self.client, "check"):
            connect.check_room(self.client, needed, what)

    def check_sight(self, folder: str | Path, files: Iterable[str | Path] = ()) -> None:
        """Raise JobError if a worker cannot write in a folder or read some files."""
        connect.check_sight(self.client, place(folder), [str(file) for file in files])

    def close(self) -> None:
        """Close the client if the engine opened it."""
        if self._owned:
            self.client.close()


def _itself(value: Any) -> Any:
    return value


def _nothing(result: Any) -> None:
    """Return None, to check that an array exists without sending it."""


@contextmanager
def _waiting() -> Iterator[None]:
    """Release the worker's thread for other tasks while a task waits for them; does nothing outside a task."""
    from distributed import rejoin, secede

    try:
        secede()
    except (ValueError, AttributeError, KeyError):  # no task, or one that has left already
        yield
        return
    try:
        yield
    finally:
        rejoin()
