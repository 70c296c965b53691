"""A worker's preload: every measurement takes a while to store, so that a test can act between two."""

import time

from dpscale.measure import orders

write_values = orders.write_values


def slowly(*arguments: object) -> None:
    write_values(*arguments)
    time.sleep(0.5)


orders.write_values = slowly
