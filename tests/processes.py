"""Processes of the scheduler "processes" that all tests of a session share; each engine would start its own."""

import os

from dpscale.engine import schedulers


class SharedProcesses:
    """Processes of one environment and working directory; a change of either, or a lost process, starts new ones."""

    def __init__(self):
        self._pool, self._place, self._new = None, None, schedulers.new_processes

    def close(self):
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown()
        self._pool = None

    def fitting(self, workers):
        """Return processes that an engine does not end."""
        own = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
        place = (workers, os.getcwd(), own)
        if self._pool is None or self._pool._broken or self._place != place:
            self.close()
            self._pool = self._new(workers)
            self._place = place
        return Borrowed(self._pool)


class Borrowed:
    """Processes of the session, which an engine uses and does not end."""

    def __init__(self, pool):
        self._pool = pool

    def __getattr__(self, name):
        return getattr(self._pool, name)

    def shutdown(self, **_):
        """Leave the processes to the next test."""
