"""Preload module of a worker that delays each measurement, and on request each count, so that a test can act in
between.
"""

import os
import time

from dpscale.engine import counting
from dpscale.measurement import measurement

STORING = float(os.environ.get("DPSCALE_TEST_STORING", "1.0"))
DRAWN = 0.0
COUNTING = float(os.environ.get("DPSCALE_TEST_COUNTING", "0"))
write_values, count = measurement.write_values, counting.count_by


def write_slowly(*arguments: object) -> None:
    time.sleep(DRAWN)
    write_values(*arguments)
    time.sleep(STORING)


def count_slowly(*arguments: object) -> object:
    time.sleep(COUNTING)
    return count(*arguments)


measurement.write_values, counting.count_by = write_slowly, count_slowly
