"""Admission of workers: a task of an engine runs only in a process that has passed the checks of the engine.

The checks are asked of each worker on its own, with a limit, so that a suspended process delays no other one. A worker
that does not answer gets no task until it has answered again and passed. The mark of admission is in the worker's
process: a process that joins later, or again at the same address, has none. A task that arrives there returns to the
scheduler until the driver has checked the process.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, version
from threading import Condition
from typing import TYPE_CHECKING, Any

from dpscale.base.error_redaction import AGAIN, FIELD
from dpscale.base.errors import JobError, TransientError
from dpscale.base.numerics import LazyModule
from dpscale.engine.graphs import Graph, fresh_token
from dpscale.engine.watch import POLL_SECONDS, answer_seconds, cluster_errors, run_limited, scheduler_answer
from dpscale.engine.worker_checks import (
    VERSION_REMEDY,
    Check,
    Question,
    SameVersions,
    installed_versions,
    unanswered,
)

if TYPE_CHECKING:
    import asyncio

    from distributed import Client
else:
    asyncio = LazyModule("asyncio")  # only clusters need it

RESCHEDULE_SECONDS = 1.0  # that a task waits for the admission of its process

_admitted: set[str] = set()  # marks of the admissions that this process has passed
_changed = Condition()


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
        self._passed: set[str] = set()
        self._silent: dict[str, Future[None]] = {}  # the request that each has not answered

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

        A value of the graph is (function, arguments …). Each function gets a single wrapper, which refuses to run
        before the process has the current mark.
        """
        calls: dict[int, AdmittedCall] = {}
        return {
            key: (calls.setdefault(id(function), AdmittedCall(function, self._mark)), *arguments)
            for key, (function, *arguments) in graph.items()
        }

    def require(self, check: Check) -> None:
        """Add a check, which all workers have to pass before they get another task.

        `_checks` are all checks in order, without repeats. A new random mark makes earlier admissions invalid, and
        workers in `_passed` are asked for the new check only.
        """
        if check in self._checks:
            self._checks.remove(check)
        self._checks.append(check)
        self._mark = secrets.token_hex(8)
        passed, self._passed = sorted(self._passed), set()
        self._ask(passed, [check])
        self.check_present()

    def check_present(self) -> None:
        """Check the workers that joined or came back; raise TransientError if no worker that is left answers."""
        self.review(set(scheduler_answer(self._client, lambda: self._client.nthreads(asynchronous=True))))
        if self.silent and not self._passed:
            raise unanswered(self.silent, answer_seconds())

    def review(self, present: Collection[str]) -> None:
        """Check those of the present workers that have joined or come back.

        `_passed` are the workers that have passed all checks. `_silent` maps a worker that did not answer to a request
        that ends once it does; the worker is asked again then.
        """
        for worker in [worker for worker, request in self._silent.items() if request.done() or worker not in present]:
            self._silent.pop(worker).cancel()
        self._passed &= set(present)
        self._ask(sorted(set(present) - self._passed - self._silent.keys()), self._checks)

    def renew(self) -> None:
        """Ask whether the workers are still admitted; another process may answer at the same address, or none.

        A worker without an answer is noted as silent. Only workers that answer True remain in `_passed`.
        """
        workers = sorted(self._passed)
        answers = ask(self._client, workers, is_admitted, self._mark, notice=self._notice)
        self._note_silent(worker for worker in workers if worker not in answers)
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

        `checks` have `questions`, which a worker answers in its own process, and an `error` for the workers that fail.
        `asked` has the check of each question by its number.
        """
        if not workers:
            return

        with ExitStack() as stack:
            try:
                asked = [(check, one) for check in checks for one in stack.enter_context(check.questions())]
            except OSError as error:
                raise TransientError("run directory", f"no file can be written for the check of workers "
                                     f"({error.strerror or type(error).__name__})", "", AGAIN) from None  # fmt: skip
            questions = [question for _, question in asked]
            answers = ask(self._client, workers, admit, self._mark, questions, notice=self._notice)

        self._note_silent(worker for worker in workers if worker not in answers)
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
        found = ask(self._client, workers, version, "dpscale")
        others = {worker: "missing" if isinstance(answer, PackageNotFoundError) else str(answer)
                  for worker, answer in found.items() if answer != here}  # fmt: skip
        if others:
            return SameVersions().error({worker: f"dpscale {other} (here {here})" for worker, other in others.items()})
        return JobError(f"{FIELD}.scheduler", f"worker {workers[0]} cannot run the check ({type(error).__name__})",
                        "the driver's versions", VERSION_REMEDY)  # fmt: skip

    def _note_silent(self, workers: Iterable[str]) -> None:
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
) -> dict[str, Any]:  # fmt: skip
    """Return function(*arguments) of each worker that answers in time, or the exception that it raised.

    Raises
    ------
    TransientError
        If the scheduler does not answer.
    """
    if not workers:
        return {}

    seconds, answers = answer_seconds(), dict[str, Any]()

    async def answer(worker: str) -> None:
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
        # distinguishes lost workers from a lost scheduler
        if len(answers) < len(workers):
            scheduler_answer(client, lambda: client.nthreads(asynchronous=True))

    return dict(answers)


async def _answer(client: Client, worker: str, function: Callable[..., Any], *arguments: object) -> Any:
    """Return the answer of one worker, or the exception that it or the connection raised."""
    try:
        answers: Mapping[str, Any] = await client.run(
            function, *arguments, workers=[worker], on_error="return", asynchronous=True
        )
    except Exception as error:  # of the connection to the scheduler
        return error if isinstance(error, OSError) else TimeoutError()
    return answers[worker]
