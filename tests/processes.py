"""Processes of the scheduler "processes" that all tests of a session share: Dask starts new ones for each step, which
import the package.
"""

import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import dask.multiprocessing as scheduler


class SharedProcesses:
    """Processes of one environment and working directory; a change of either, or a lost process, starts new ones."""

    def __init__(self):
        self._pool, self._place, self._get = None, None, scheduler.get

    def get(self, graph, keys, num_workers=None, **settings):
        """Return the results of `keys`, as Dask's scheduler of this name does."""
        return self._get(graph, keys, pool=self._fitting(num_workers or os.cpu_count()), **settings)

    def close(self):
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown()
        self._pool = None

    def _fitting(self, workers):
        os.environ.setdefault("PYTHONHASHSEED", "6640")  # as Dask does: equal hashes in all processes
        own = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
        place = (workers, os.getcwd(), own)
        if self._pool is None or self._pool._broken or self._place != place:
            self.close()
            start = partial(scheduler.initialize_worker_process, user_initializer=None)
            self._pool = ProcessPoolExecutor(workers, scheduler.get_context(), start)
            self._place = place
        return self._pool
