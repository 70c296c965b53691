"""Engine on an existing `distributed` cluster.

Task keys are readable and contain no argument: `dpscale-count-<random>` and a number. A map submits a few batches per
thread, at most some thousands, and submits more as they finish, so the scheduler needs the same memory for a million
items as for a thousand. A batch is released as soon as its results have arrived. A reduction is one graph, whose size
`counting` bounds. The scheduler remembers its tasks while a handle exists, because Dask recomputes a lost sum from
them.
"""

from __future__ import annotations

import math
import secrets
import warnings
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, TypeVar

from dpscale.base.display import display_path
from dpscale.base.error_redaction import accepted
from dpscale.base.errors import JobError
from dpscale.engine import admission
from dpscale.engine.admission import SHOWN, Admission, SameFiles, Workers, ask, unanswered
from dpscale.engine.base import Engine, Progress, argument_tuples, silent
from dpscale.engine.configuration import REPORT, configured, setting_name
from dpscale.engine.graphs import (
    Batches,
    Graph,
    batch_graph,
    call_graph,
    call_graphs,
    exchange_graph,
    fetch_results,
    group_futures,
    join_chunks,
    literal,
    message_of,
    pickle_value,
    reduction_graph,
    split_chunks,
)
from dpscale.engine.watch import (
    POLL_SECONDS,
    RedactedCall,
    Watch,
    answer_seconds,
    cluster_errors,
    flush_messages,
    lost_scheduler,
    no_workers,
    scheduler_answer,
    worker_seconds,
)
from dpscale.storage.files import place
from dpscale.storage.scratch import Use, end

if TYPE_CHECKING:
    from distributed import Client, Future

Value = TypeVar("Value")
RETRIES = 3  # repetitions of a task that fails
MOST_TASKS = 4000  # tasks of a map on the scheduler at once
# tasks of a map, or numbers of an exchange, at once for each thread; least number of tasks of a map at once
TASKS_PER_THREAD, LEAST_TASKS = 4, 32
FRESH_SECONDS = 1.0  # age at which a number of threads is still used to choose sizes
SMALL = 1 << 18  # bytes of a value that is sent with every task that uses it
JOIN_SECONDS = 0.1  # between looks for a first worker
CLOSE_SECONDS = 5.0  # that the client may take to close its connection
RESOURCE = "MEMORY"  # bytes; requested if every worker declares it


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

    def __init__(self, client: Client, progress: Progress = silent, owned: bool = False, priority: int = 0) -> None:
        """Draw the name of the engine, by which keys of tasks are unique; the parameters are those of the class."""
        self.client, self.progress, self.priority, self._owned = client, progress, priority, owned
        self._name, self._runs = secrets.token_hex(8), 0
        self._paces: dict[str, float | None] = {}  # seconds of a call of the last map with a label
        self._admission = Admission(client, lambda done, total: self.progress("check", done, total))
        self._restrictions: set[frozenset[str]] = set()  # workers of tasks that only some may get
        self._shown = ("check", 0, 0)  # last report of progress
        self._renewed = -math.inf
        self._performance: Any = None
        self._threads, self._threads_time = dict[str, int](), -FRESH_SECONDS

    @property
    def workers(self) -> int:  # type: ignore[override]
        """Current number of threads of all workers."""
        self._check_open()
        with cluster_errors(self.client, "start"):
            return max(1, sum(self._nthreads().values()))

    def _nthreads(self, refresh: bool = False) -> dict[str, int]:
        """Return the threads of each worker, from an answer that is at most FRESH_SECONDS old."""
        if refresh or monotonic() - self._threads_time > FRESH_SECONDS:
            threads = scheduler_answer(self.client, lambda: self.client.nthreads(asynchronous=True), self._remind)
            self._threads, self._threads_time = dict(threads), monotonic()
        return self._threads

    def map(
        self, function: Callable[..., Any], items: Iterable[Any], label: str = "map", memory: int | None = None
    ) -> list[Any]:
        """Return function(item) for every item, in order; a tuple item is unpacked into the arguments.

        Items are run in batches, whose size follows from the time of a call in the last map with this label.
        """
        arguments = argument_tuples(items)
        results: list[Any] = [None] * len(arguments)
        batches = Batches(arguments, self.workers, self._paces.get(label))
        flow = self._run_batches(RedactedCall(function), batches, label, memory)

        with cluster_errors(self.client, label), _waiting(), closing(flow):
            self._admission.check_present()
            done = 0
            for start, (seconds, values) in flow:
                results[start : start + len(values)] = values
                batches.learn(len(values), seconds)
                done += len(values)
                self._report(label, done, len(results))

        self._paces[label] = batches.pace
        accepted(results)
        return results

    def _run_batches(
        self, function: RedactedCall, batches: Batches, label: str, memory: int | None
    ) -> Generator[tuple[int, tuple[float, list[Any]]], None, None]:
        """Run batches, a limited number at once, and yield the start and the result of each as it finishes.

        The start is the number of the first item of a batch. New tasks are submitted when half of those at the
        scheduler are finished.
        """
        watch, name, resources = self._watch(), self._key_prefix(label), self._resources(memory)
        window = min(max(LEAST_TASKS, TASKS_PER_THREAD * self.workers), MOST_TASKS)  # tasks at the scheduler at once
        pending: dict[Future, int] = {}  # unfinished tasks, with the start of their batch

        try:
            while batches.remaining or pending:
                while batches.remaining and len(pending) <= window // 2:
                    graph, handles = batch_graph(function, batches, window - len(pending), name, self.scatter)
                    futures = self._submit(graph, list(graph), resources, later=handles)
                    pending.update({future: future.key[1] for future in futures})
                    watch.add(futures)
                    # send this graph before the next one, which Dask would merge with it into one message
                    flush_messages(self.client) if len(pending) < window else None
                for finished in group_futures(watch.next()):
                    yield from zip(
                        [pending[future] for future in finished],
                        fetch_results(finished, watch.gather, self._run_task),
                        strict=True,
                    )
                    for future in finished:
                        del pending[future]
                        # the scheduler can forget the result
                        future.release()
        finally:
            # after an error or an early end, the remaining tasks are released
            for future in pending:
                future.release()

    def _run_task(self, function: Callable[..., Value], *arguments: object) -> Value:
        """Return the result of one small task."""
        key, watch = (self._key_prefix("fetch"), 0), self._watch()
        watch.add(self._submit({key: (RedactedCall(function), *map(literal, arguments))}, [key], None, later=True))
        return watch.gather(watch.next())[0]

    def reduce(
        self,
        function: Callable[..., Sequence[Any]],
        items: Sequence[tuple[Any, ...]],
        parts: int,
        label: str = "reduce",
        memory: int | None = None,
        pieces: Sequence[range] | None = None,
        disjoint: bool = False,
    ) -> list[Any]:
        """Sum lists of `parts` arrays over items; return a future for each part once all are finished.

        A piece is a range of parts that the same tasks sum; without `pieces` there is a single one of all parts. With
        `disjoint` each call has a piece and nothing is summed. `memory` is the number of bytes that a task needs.
        """
        ranges = pieces or [range(parts)]
        graph, _, roots = reduction_graph(function, items, ranges, self._key_namer(label), disjoint)
        handles = self._run_graphs([(graph, roots)], label, memory)
        # unless items are disjoint, every part has the same error
        checked = [handles[piece.start] for piece in ranges] if disjoint else handles[:1]
        self.map(_check_exists, [(handle,) for handle in checked], "check")
        return handles

    def persist(
        self, function: Callable[..., Any], items: Iterable[tuple[Any, ...]], label: str = "keep",
        memory: int | None = None,
    ) -> list[Any]:  # fmt: skip
        """Call function(*item) for every item; return futures once all are finished. Results stay on the workers.

        `label` names the tasks in the progress, and `memory` is the number of bytes that a task needs.
        """
        with cluster_errors(self.client, label):
            graphs = call_graphs(RedactedCall(function), list(items), self._key_prefix(label), self.scatter)
        return self._run_graphs([(graph, list(graph)) for graph in graphs], label, memory)

    def exchange(
        self, take: Callable[..., Any], handles: Sequence[Any], join: Callable[..., Any], count: int,
        label: str = "exchange", keep: bool = False,
    ) -> list[Any]:  # fmt: skip
        """Return join([take(handle, number) for all handles]) for every number; parts travel between workers directly.

        If a value is lost with its worker, Dask recomputes it from its task.
        """
        results: list[Any] = []
        with cluster_errors(self.client, label), _waiting():
            self._admission.check_present()
            # each number needs one task for each handle
            at_once = min(TASKS_PER_THREAD * self.workers, max(MOST_TASKS // len(handles), self.workers))
            while len(results) < count:
                numbers = range(len(results), min(len(results) + at_once, count))
                results += self._run_exchange(take, handles, join, numbers, self._key_namer(label), keep)
                if not keep:
                    accepted(results[-len(numbers) :])
                self._report(label, len(results), count)

        return results

    def _run_exchange(
        self, take: Callable[..., Any], handles: Sequence[Any], join: Callable[..., Any], numbers: range,
        key_name: Callable[[str], str], keep: bool,
    ) -> list[Any]:  # fmt: skip
        """Run the exchange for some numbers; return the results, or with `keep` handles of them on the workers."""
        graph, keys = exchange_graph(take, handles, join, numbers, key_name)
        futures, watch = self._submit(graph, keys, None), self._watch()
        watch.add(futures)
        for _ in watch.all(len(futures)):
            pass
        return futures if keep else watch.gather(futures)

    def scatter(self, values: Sequence[Any], label: str = "send") -> list[Any]:
        """Return futures of values that tasks return, so that a value lost with its worker is sent again.

        Values are sent in messages of limited size.
        """
        handles: list[Any] = []
        while len(handles) < len(values):
            items = [(value,) for value in message_of(values[len(handles) :])]
            graph = call_graph(_identity, items, self._key_prefix(label))
            handles += self._run_graphs([(graph, list(graph))], label, None)
        return handles

    def broadcast(self, value: object, label: str = "send") -> object:
        """Return a small value itself and a future of a large one, which is sent to the scheduler once, in pieces.

        SMALL is the number of bytes up to which a value is sent with each task. Pieces of a large value are joined by a
        task on a worker.
        """
        data = pickle_value(value)
        if len(data) <= SMALL:
            return value
        return self.persist(join_chunks, [tuple(self.scatter(split_chunks(data), label))], label)[0]

    @contextmanager
    def scratch(self) -> Iterator[Use]:
        """Yield a use of temporary files; a file is removed with the worker that wrote it or at the end."""
        use = Use()
        try:
            yield use
        finally:
            with suppress(Exception):  # if the scheduler is lost, its workers remove all files
                ask(self.client, list(self._nthreads(refresh=True)), end, use)

    def _run_graphs(self, graphs: Sequence[tuple[Graph, list[Any]]], label: str, memory: int | None) -> list[Any]:
        """Submit graphs of tasks, each with the keys of its results; return handles of these when all are done.

        `memory` is the number of bytes that a task needs, for Dask's resources of workers. The messages of a graph are
        flushed before the next one is submitted, because Dask would merge them into one.
        """
        with cluster_errors(self.client, label), _waiting():
            self._admission.check_present()
            resources, watch = self._resources(memory), self._watch()
            handles: list[Any] = []
            for graph, keys in graphs:
                flush_messages(self.client) if handles else None
                handles += self._submit(graph, keys, resources)
            watch.add(handles)
            for done in watch.all(len(handles)):
                self._report(label, done, len(handles))
        return handles

    def _submit(
        self, graph: Graph, keys: list[Any], resources: dict[str, int] | None, later: bool = False
    ) -> list[Any]:
        """Submit a graph and return the futures of some keys.

        `later` marks tasks that consume results of others (handles). They precede other tasks of equal priority, which
        releases the memory of the results early.
        """
        self._check_open()
        priority = self.priority * 2 + later
        with warnings.catch_warnings():  # about large graphs; their size may reveal how many rows are left out
            warnings.simplefilter("ignore", UserWarning)
            return self._futures(graph, keys, priority, resources)

    def _futures(self, graph: Graph, keys: list[Any], priority: int, resources: dict[str, int] | None) -> list[Any]:
        """Submit a graph to the admitted workers and return the futures of `keys`.

        While a worker has not answered, tasks are restricted to the others. Such restrictions are recorded to detect
        that all of these workers are lost.
        """
        workers = self._admission.only
        self._restrictions |= {frozenset(workers)} if workers else set()
        return list(self.client.get(self._admission.guarded(graph), keys, sync=False, retries=RETRIES, workers=workers,
                                    priority=priority, resources=resources))  # fmt: skip

    def _watch(self) -> Watch:
        return Watch(self.client, self._review)

    def _review(self, present: Collection[str] | None, idle: float) -> None:
        """Check workers that joined or came back, ask all again if nothing finishes, and repeat the progress.

        Raises TransientError if tasks of this engine may run on lost workers only (`_futures`). `idle` are the seconds
        since a task finished.
        """
        if present:
            if min(idle, monotonic() - self._renewed) > answer_seconds():
                self._admission.renew()
                self._renewed = monotonic()
            self._admission.review(present)
            if lost := [workers for workers in self._restrictions if workers.isdisjoint(present)]:
                raise unanswered(self._admission.silent or sorted(lost[0]), answer_seconds())
        if idle > POLL_SECONDS:
            self._remind(["the scheduler"] if present is None else self._admission.silent)

    def _report(self, label: str, done: int, total: int) -> None:
        self._shown = (label, done, total)
        self.progress(label, done, total)

    def _remind(self, silent: Sequence[str] = ("the scheduler",)) -> None:
        """Repeat the last report of progress, with what does not answer."""
        label, done, total = self._shown
        self.progress(f"{label}, no answer from {' and '.join(silent[:SHOWN])}" if silent else label, done, total)

    def _check_open(self) -> None:
        """Raise TransientError if the client is closed; a client that lost its scheduler for good closes itself."""
        if self.client.status == "closed":
            raise lost_scheduler()

    def _key_namer(self, label: str) -> Callable[[str], str]:
        token = self._token()
        return lambda kind: "-".join(["dpscale", label, *([kind] if kind else []), token])

    def _key_prefix(self, label: str) -> str:
        return self._key_namer(label)("")

    def _token(self) -> str:
        """Return a fresh token; a cluster remembers results by key, including those of an earlier job."""
        self._runs += 1
        return f"{self._name}{self._runs}"

    def _resources(self, memory: int | None) -> dict[str, int] | None:
        """Return the memory to request, at most that of the smallest worker; None unless all workers declare it."""
        smallest_declared = admission.smallest_declared(self.worker_info(), RESOURCE) if memory else None
        return {RESOURCE: min(memory, smallest_declared)} if memory and smallest_declared else None

    def worker_info(self) -> Workers:
        """Return what the scheduler states about each worker."""
        answer = scheduler_answer(self.client, lambda: self.client.scheduler.identity(n_workers=-1), self._remind)  # type: ignore[union-attr]
        return dict(answer["workers"])

    def check_workers(self) -> None:
        """Wait for a first worker; raise JobError if the versions of a worker differ from those of this process.

        The wait ends with an error after `worker_seconds`. A task without effect makes an adaptive cluster start a
        worker.
        """
        seconds = worker_seconds()
        with cluster_errors(self.client, "check"), _waiting():
            end, call = monotonic() + seconds, None  # the future of `call` is kept, so that its task stays
            while not any(info["status"] == "running" for info in self.worker_info().values()):
                if monotonic() > end:
                    raise no_workers(seconds)
                if call is None:  # an adaptive cluster starts workers for tasks only
                    call = self.client.submit(int, key=self._key_prefix("wake"))
                sleep(JOIN_SECONDS)
                self._report("wait for workers", 0, 1)
            self._admission.check_present()

    @property
    def admitted(self) -> list[str] | None:
        """The workers that may get tasks; None if all may."""
        return self._admission.only

    def check_worker_memory(self, needed: int, what: str) -> None:
        """Raise PlanError if a task on `what` that needs `needed` bytes does not fit the smallest worker."""
        with cluster_errors(self.client, "check"):
            admission.check_worker_memory(self.worker_info(), needed, what)

    def check_file_access(self, folder: str | Path, files: Iterable[str | Path] = ()) -> None:
        """Raise JobError if a worker cannot write in a folder or read some files; later workers are checked too."""
        self._admission.require(SameFiles(place(folder), tuple(str(file) for file in files)))

    def report_performance(self) -> None:
        """Start a performance report of Dask if the settings name a file for it."""
        if not (file := configured(REPORT)):
            return
        if find_spec("bokeh") is None:
            raise JobError(setting_name(REPORT), f"{display_path(file)}, which requires the missing package bokeh",
                           "an installed bokeh", "pip install bokeh, also on the machine of the scheduler")  # fmt: skip
        from distributed import performance_report

        self._performance = performance_report(filename=str(file), stacklevel=0)
        with self.client.as_current():
            self._performance.__enter__()

    def close(self) -> None:
        """Close the client if the engine opened it; a scheduler that does not answer delays this for a short time."""
        if self._performance is not None:
            try:
                with self.client.as_current():
                    self._performance.__exit__(None, None, None)
            except Exception as error:  # the run is finished, and needs no report
                warnings.warn(f"the performance report was not written ({type(error).__name__})", stacklevel=2)
            self._performance = None
        self._admission.close()
        if self._owned:
            with suppress(Exception):
                self.client.close(CLOSE_SECONDS)


def _identity(value: Value) -> Value:
    return value


def _check_exists(result: object) -> None:
    """Return None, to check that an array exists without sending it."""


@contextmanager
def _waiting() -> Iterator[None]:
    """Release the worker's thread for other tasks while a task waits for them; does nothing outside a task."""
    from distributed import rejoin, secede

    try:
        secede()
    except (ValueError, AttributeError, KeyError):  # not in a task, or already released
        yield
        return

    try:
        yield
    finally:
        rejoin()
