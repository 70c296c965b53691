"""Counts + a decision + noise → released values, the durable thing.

`block` applies an integer strategy to exact counts and adds keyed noise, all in integers; `store` keeps what is
measured, many in a file, and `filing` says which are where; `Released` is all of a release on disk. Nothing leaves this
room that is not on the ledger first (the stages charge before they call).
"""

from dpscale.measurement.measurement import Measurements, carry_out, measure_all, measure_block
from dpscale.measurement.measurement_store import Released

__all__ = ["Measurements", "Released", "carry_out", "measure_all", "measure_block"]
