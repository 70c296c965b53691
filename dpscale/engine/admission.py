"""Admission of workers: a task of an engine runs only in a process that has passed the checks of the engine.

The checks are asked of each worker on its own, with a limit, so that a suspended process delays no other one. A worker
that does not answer gets no task until it has answered again and passed. The mark of admission is in the worker's
process: a process that joins later, or again at the same address, has none. A task that arrives there returns to the
scheduler until the driver has checked the process.

*Checks.*
A check has a question, a function that the worker calls and that returns a description of its fault or "", and an error
that names workers with their faults.
"""

from __future__ import annotations

import hashlib
import os
import platform
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import Condition
from typing import TYPE_CHECKING, Any, Protocol

from dpscale.base.display import distinct_sizes, quantity
from dpscale.base.error_redaction import AGAIN, FIELD
from dpscale.base.errors import DpscaleError, JobError, PlanError, TransientError
from dpscale.base.numerics import LazyModule
from dpscale.engine.graphs import Graph, fresh_token
from dpscale.engine.watch import POLL_SECONDS, answer_seconds, cluster_errors, run_limited, scheduler_answer
from dpscale.storage.files import is_local, place, write_whole
from dpscale.storage.lock import file_lock, is_free
from dpscale.storage.objects import is_url, opening

Workers = Mapping[str, Mapping[str, Any]]  # what the scheduler states about each worker
Question = tuple[Any, ...]  # a function that a worker calls, and its arguments
PACKAGES = ("dpscale", "dask", "distributed", "numpy", "pyarrow", "numba", "cryptography")
SHOWN = 3  # workers named in an error message
SAMPLE = 100  # files that every worker checks
BASE = 1 << 28  # bytes of a worker process after all libraries are loaded
ENDS = 1 << 16  # bytes read at each end of a file; they include most of a Parquet footer
FILE_PROBLEMS = ("read the file", "see the file")
TOKEN, LOCK = ".seen-", ".lock"  # the lock is a file of its own: some file systems forbid to read a locked one
VERSION_REMEDY = "install the same versions everywhere: see cluster/README.md"

if TYPE_CHECKING:
    import asyncio

    from distributed import Client
else:
    asyncio = LazyModule("asyncio")  # only clusters need it

RESCHEDULE_SECONDS = 1.0  # that a task waits for the admission of its process

_admitted: set[str] = set()  # marks of the admissions that this process has passed
_changed = Condition()


class Check(Protocol):
    """A condition that a worker fulfils."""

    def questions(self) -> Any:
        """Return a context manager of the questions to ask; they can be answered within it."""

    def error(self, faults: Mapping[str, str]) -> DpscaleError:
        """Return the error for workers with their faults."""


@dataclass(frozen=True)
class SameVersions:
    """The versions of Python and packages are those of this process."""

    @contextmanager
    def questions(self) -> Iterator[list[Question]]:
        """Yield the question for the versions."""
        yield [(version_faults, installed_versions())]

    def error(self, faults: Mapping[str, str]) -> JobError:
        """Return the error that names the workers and their versions."""
        text = _describe_workers(faults, "has")
        return JobError(f"{FIELD}.scheduler", text, "the driver's versions", VERSION_REMEDY)


def installed_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages on which results depend."""
    return {"python": ".".join(platform.python_version().split(".")[:2])} | {name: _version(name) for name in PACKAGES}


def _version(name: str) -> str:
    """Return the version of an installed distribution, or "missing"."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


def version_faults(expected: Mapping[str, str]) -> str:
    """Return the versions of this process that differ from the expected ones; "" if none does."""
    installed = installed_versions()
    differing = [(name, wanted) for name, wanted in expected.items() if installed.get(name) != wanted]
    # the message is read on the driver, whose versions are the expected ones
    return ", ".join(f"{name} {installed.get(name, 'missing')} (here {wanted})" for name, wanted in differing)


@dataclass(frozen=True)
class SameFiles:
    """A worker can work in a folder as this process does, and reads the same files.

    A temporary token with the permissions of a release's noise key is written there; only its owner may read it.
    """

    folder: Path
    files: tuple[str, ...]

    @contextmanager
    def questions(self) -> Iterator[list[Question]]:
        """Yield the question for the folder and the first SAMPLE files; none if the folder was removed since."""
        if is_local(self.folder) and not self.folder.is_dir():
            yield []
            return
        # a worker reads the token in the folder, and hashes its files with this content
        content = secrets.token_bytes(16)
        with _written_token(self.folder, content) as token:
            fingerprints = {file: file_fingerprint(file, content) for file in self.files[:SAMPLE]}
            yield [(worker_problem, str(token), content, fingerprints)]

    def error(self, faults: Mapping[str, str]) -> JobError:
        """Return the error that names the workers and what they cannot do."""
        of_data = all(fault.startswith(FILE_PROBLEMS) for fault in faults.values())
        return JobError("data.path" if of_data else "run directory", _describe_workers(faults, "cannot"),
                        "the same paths on every machine, for the same user",
                        "mount a shared file system, or run workers as this user")  # fmt: skip


@contextmanager
def _written_token(folder: Path, content: bytes) -> Iterator[Path]:
    """Write a token, yield its path and remove it, with those of killed drivers: a live driver locks its own."""
    token = folder / f"{TOKEN}{secrets.token_hex(8)}"
    try:
        if not is_local(token):
            write_whole(token, content)
            yield token
            return

        _remove_tokens(folder)
        with file_lock(token.with_suffix(LOCK)):
            with os.fdopen(os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())  # workers on other machines read it now
            yield token
    finally:
        for path in (token, token.with_suffix(LOCK)) if is_local(token) else (token,):
            path.unlink(missing_ok=True)


def _remove_tokens(folder: Path) -> None:
    """Remove the tokens of killed drivers, whose lock is free; none where there are no locks."""
    for lock in folder.glob(f"{TOKEN}*{LOCK}"):
        token = lock.with_suffix("")
        with suppress(OSError):
            if is_free(lock) and token.exists():  # without a token, the lock is about to be taken
                for path in (token, lock):
                    path.unlink(missing_ok=True)


def file_fingerprint(file: str, key: bytes) -> bytes:
    """Return a keyed hash of the size and both ends of a file; empty if it is unreadable or a folder.

    The key is used once.
    """
    hasher = hashlib.blake2b(key=key)
    try:
        with opening(file, ENDS) as opened:
            size = opened.seek(0, os.SEEK_END)
            opened.seek(0)
            hasher.update(b"%d:" % size + opened.read(ENDS))
            opened.seek(max(size - ENDS, 0))
            hasher.update(opened.read(ENDS))
    except (OSError, DpscaleError):
        return b""

    return hasher.digest()


def worker_problem(token: str, content: bytes, fingerprints: Mapping[str, bytes]) -> str:
    """Return a description of the first thing that this worker cannot do; "" if there is none. Runs on the worker.

    Parameters
    ----------
    token : str
        Path of a file that the driver wrote.
    content : bytes
        Content of the token.
    fingerprints : mapping of str to bytes
        Fingerprint of each file, computed by the driver.
    """
    folder, path = os.path.dirname(token), place(token)
    try:
        if path.read_bytes() != content:
            return f"see {folder} as the driver sees it"
    except PermissionError:
        return f"read files in {folder} that only their owner can read"
    except OSError:
        return f"see {folder}"
    except Exception as error:  # error of a store's client, whose text may contain keys
        return f"reach {folder} ({type(error).__name__})"

    if is_local(path) and not os.access(folder, os.W_OK | os.X_OK):
        return f"write in {folder}"

    for file, expected in fingerprints.items():
        if not is_url(file) and not os.access(file, os.R_OK):
            return f"{FILE_PROBLEMS[0]} {file}"
        if file_fingerprint(file, content) != expected:
            return f"{FILE_PROBLEMS[1]} {file} as the driver sees it"

    return ""


def check_worker_memory(workers: Workers, needed: int, what: str) -> None:
    """Raise PlanError if a task needs more bytes than the smallest worker has per thread.

    BASE is left for the process itself. Workers without a limit are not checked.
    """
    capacities = {
        worker: max(info["memory_limit"] - BASE, 0) // info["nthreads"]
        for worker, info in workers.items()
        if info.get("memory_limit")
    }
    if not capacities:
        return

    smallest = min(capacities, key=lambda worker: capacities[worker])
    if needed > capacities[smallest]:
        shown, limit = distinct_sizes(needed, capacities[smallest])
        raise PlanError(
            f"{FIELD}.memory",
            f"a task on {what} needs {shown}",
            f"at most the {limit} that worker {smallest} has for each of its threads",
            "lower engine.memory, give workers more memory (--memory-limit) or fewer threads, or leave the set out",
        )


def smallest_declared(workers: Workers, resource: str) -> int | None:
    """Return the smallest amount of a resource that a worker declares; None unless all workers declare it."""
    amounts = [info.get("resources", {}).get(resource) for info in workers.values()]
    return None if not amounts or None in amounts else int(min(amounts))


def _describe_workers(faults: Mapping[str, str], verb: str) -> str:
    """Return a phrase that names the first SHOWN workers with their faults."""
    first = [f"worker {worker} {verb} {fault}" for worker, fault in list(faults.items())[:SHOWN]]
    more = len(faults) - len(first)
    return " and ".join([*first, *([quantity(more, "more worker")] if more else [])])


def unanswered(workers: Sequence[str], seconds: float) -> TransientError:
    """Return the error for workers that do not answer."""
    named = " and ".join([*workers[:SHOWN], *([f"{len(workers) - SHOWN} more"] if len(workers) > SHOWN else [])])
    return TransientError(FIELD, f"no answer within {seconds:g} s from worker{'s' * (len(workers) > 1)} {named}", "",
                          f"continue or end what is suspended, or start other workers, then {AGAIN}")  # fmt: skip


def admit(mark: str, questions: Sequence[Question]) -> tuple[int, str] | None:
    """Admit this process if no question finds a fault; return the number of the first that does, and the fault.

    A question is (function, arguments …) whose result is a fault, or empty. `mark` identifies the state of the checks;
    waiting tasks of this process continue once it is admitted.
    """
    for number, (function, *arguments) in enumerate(questions):
        if fault := function(*arguments):
            return number, str(fault)
    with _changed:
        _admitted.add(mark)
        _changed.notify_all()
    return None


def is_admitted(mark: str) -> bool:
    """Return whether this process has passed the checks of an admission."""
    return mark in _admitted


class AdmittedCall:
    """Function of a task that is called only in an admitted process; its repr shows no argument."""

    def __init__(self, function: Callable[..., Any], mark: str) -> None:
        self.function, self.mark = function, mark
        self.__name__ = getattr(function, "__name__", type(function).__name__)

    def __call__(self, *arguments: object) -> Any:
        """Call the function once the process has the mark of the engine.

        After RESCHEDULE_SECONDS without it the task is returned to the scheduler, which may choose another worker.
        """
        with _changed:
            admitted = _changed.wait_for(lambda: self.mark in _admitted, RESCHEDULE_SECONDS)
        if not admitted:
            from distributed import Reschedule

            raise Reschedule
        return self.function(*arguments)

    def __dask_tokenize__(self) -> str:
        return fresh_token()

    def __repr__(self) -> str:
        return self.__name__


class Admission:
    """Workers of a cluster that have passed the checks of an engine.

    Parameters
    ----------
    client : distributed.Client
    notice : callable
        Called with the number of workers that have answered and their total, every second of waiting.
    """

    def __init__(self, client: Client, notice: Callable[[int, int], None]) -> None:
        """Draw the mark of the engine; no worker has passed yet."""
        self._client, self._notice = client, notice
        self._checks: list[Check] = [SameVersions()]
        self._mark = secrets.token_hex(8)
        self._passed: set[str] = set()  # workers that have passed all checks
        # workers without an answer, each with a request that ends once it answers
        self._silent: dict[str, Future[None]] = {}

    @property
    def silent(self) -> list[str]:
        """Workers without an answer to the last question."""
        return sorted(worker for worker, request in self._silent.items() if not request.done())

    @property
    def only(self) -> list[str] | None:
        """The workers that may get tasks; None if all may."""
        return sorted(self._passed) if self._silent else None

    def guarded(self, graph: Graph) -> Graph:
        """Return a graph whose tasks run only in admitted processes.

        A value of the graph is (function, arguments …). Tasks of one function share a wrapper, which refuses to run it
        before the process has the current mark.
        """
        calls: dict[int, AdmittedCall] = {}
        return {
            key: (calls.setdefault(id(function), AdmittedCall(function, self._mark)), *arguments)
            for key, (function, *arguments) in graph.items()
        }

    def require(self, check: Check) -> None:
        """Add a check, which all workers have to pass before they get another task.

        A new random mark makes earlier admissions invalid. Processes that have passed the earlier checks are asked for
        the new one only.
        """
        self.renew()  # leaves only processes that have passed in `_passed`
        if check in self._checks:
            self._checks.remove(check)
        self._checks.append(check)
        self._mark = secrets.token_hex(8)
        passed, self._passed = sorted(self._passed), set()
        self._ask(passed, [check])
        self.check_present()

    def check_present(self) -> None:
        """Check the workers that joined or came back; raise TransientError if no worker that is left answers.

        Workers may leave and join while others are asked. If a worker is silent, tasks are restricted to those that
        have passed, so that the check is repeated until the workers are the same before and after it.
        """
        checked, present = None, self._present()
        while present != checked:
            self.review(present)
            checked = present
            present = self._present() if self._silent else present
        if self.silent and not self._passed:
            raise unanswered(self.silent, answer_seconds())

    def _present(self) -> set[str]:
        """Return the workers that the scheduler has."""
        return set(scheduler_answer(self._client, lambda: self._client.nthreads(asynchronous=True)))

    def review(self, present: Collection[str]) -> None:
        """Check those of the present workers that have joined or come back, and silent ones that answer now."""
        for worker in [worker for worker, request in self._silent.items() if request.done() or worker not in present]:
            self._silent.pop(worker).cancel()
        self._passed &= set(present)
        self._ask(sorted(set(present) - self._passed - self._silent.keys()), self._checks)

    def renew(self) -> None:
        """Ask whether the workers are still admitted; another process may answer at the same address, or none.

        A worker without an answer is noted as silent. Only workers that answer True remain in `_passed`.
        """
        answers, silent = ask(self._client, sorted(self._passed), is_admitted, self._mark, notice=self._notice)
        self._note_silent(silent)
        self._passed = {worker for worker, answer in answers.items() if answer is True}

    def close(self) -> None:
        """Withdraw the requests without an answer."""
        for request in self._silent.values():
            request.cancel()
        self._silent.clear()

    def _ask(self, workers: Sequence[str], checks: Sequence[Check]) -> None:
        """Admit the workers that pass some checks; raise the error of the first check that one does not pass.

        A worker answers None if it passes, (number of the question, fault) if not, or an exception. The first check
        that fails is reported, with all workers that fail it.
        """
        if not workers:
            return

        with ExitStack() as stack:
            try:
                # each question with its check
                asked = [(check, question) for check in checks for question in stack.enter_context(check.questions())]
            except OSError as error:
                raise TransientError("run directory", f"no file can be written for the check of workers "
                                     f"({error.strerror or type(error).__name__})", "", AGAIN) from None  # fmt: skip
            questions = [question for _, question in asked]
            answers, silent = ask(self._client, workers, admit, self._mark, questions, notice=self._notice)

        self._note_silent(silent)
        self._passed |= {worker for worker, answer in answers.items() if answer is None}
        faults = {worker: answer for worker, answer in answers.items() if answer is not None}
        if not faults:
            return
        # an exception says nothing about the check, so it is reported before faults
        if broken := sorted(worker for worker, answer in faults.items() if isinstance(answer, BaseException)):
            raise self._unchecked(broken, faults[broken[0]])

        first = min(number for number, _ in faults.values())
        raise asked[first][0].error({worker: fault for worker, (number, fault) in faults.items() if number == first})

    def _unchecked(self, workers: Sequence[str], error: BaseException) -> JobError:
        """Return the error for workers that cannot run the check, nearly always because of an older version.

        `error` is the exception that the worker raised. If versions of dpscale differ, the error lists the workers
        whose version differs.
        """
        here = installed_versions()["dpscale"]
        found, _ = ask(self._client, workers, version, "dpscale")
        others = {worker: "missing" if isinstance(answer, PackageNotFoundError) else str(answer)
                  for worker, answer in found.items() if answer != here}  # fmt: skip
        if others:
            return SameVersions().error({worker: f"dpscale {other} (here {here})" for worker, other in others.items()})
        return JobError(f"{FIELD}.scheduler", f"worker {workers[0]} cannot run the check ({type(error).__name__})",
                        "the driver's versions", VERSION_REMEDY)  # fmt: skip

    def _note_silent(self, workers: Sequence[str]) -> None:
        self._silent |= {worker: self._await_answer(worker) for worker in workers}

    def _await_answer(self, worker: str) -> Future[None]:
        """Begin a request to a worker that ends when the worker answers."""

        async def answered() -> None:
            while isinstance(await _answer(self._client, worker, os.getpid), BaseException):
                await asyncio.sleep(POLL_SECONDS)

        return asyncio.run_coroutine_threadsafe(answered(), self._client.loop.asyncio_loop)  # type: ignore[union-attr]


def ask(
    client: Client, workers: Sequence[str], function: Callable[..., Any], *arguments: object,
    notice: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[dict[str, Any], list[str]]:  # fmt: skip
    """Return the answer function(*arguments) of each worker, or the exception that it raised, and the silent workers.

    Silent are the workers that do not answer in time although the scheduler still has them. Workers that have left
    meanwhile are in neither: tasks may run on what joins in their place. `notice` is called while answers are awaited.

    Raises
    ------
    TransientError
        If the scheduler does not answer.
    """
    if not workers:
        return {}, []

    seconds, answers = answer_seconds(), dict[str, Any]()

    async def answer(worker: str) -> None:
        found = await _answer(client, worker, function, *arguments)
        if isinstance(found, OSError):  # of a worker that ends, before the scheduler notices
            await asyncio.sleep(POLL_SECONDS)
            found = await _answer(client, worker, function, *arguments)
        # these show that the worker did not answer; it is asked again later
        if not isinstance(found, (OSError, TimeoutError, MemoryError)):
            answers[worker] = found

    async def all_answers() -> None:
        requests = [asyncio.ensure_future(answer(worker)) for worker in workers]
        _, late = await asyncio.wait(requests, timeout=seconds)
        for request in late:
            request.cancel()

    with cluster_errors(client, "check"):
        run_limited(client, all_answers, 2 * seconds, lambda: notice(len(answers), len(workers)))
        if len(answers) == len(workers):
            return dict(answers), []
        present = scheduler_answer(client, lambda: client.nthreads(asynchronous=True))

    given = {worker: answer for worker, answer in answers.items() if worker in present}
    return given, [worker for worker in workers if worker in present and worker not in given]


async def _answer(client: Client, worker: str, function: Callable[..., Any], *arguments: object) -> Any:
    """Return the answer of one worker, or the exception that it or the connection raised."""
    try:
        answers: Mapping[str, Any] = await client.run(
            function, *arguments, workers=[worker], on_error="return", asynchronous=True
        )
    except Exception as error:  # of the connection to the scheduler
        return error if isinstance(error, OSError) else TimeoutError()
    return answers[worker]
