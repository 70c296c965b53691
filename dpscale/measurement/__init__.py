"""Measurement of a plan's decisions: exact counts plus keyed noise, and the durable store of the released values.

`measurement` applies an integer strategy to exact counts and adds keyed noise, all in integers. `value_files` defines
the layout of the value files, and `MeasurementStore` represents all of a release on disk. `Journal` records each
decision on the ledger before its noise is drawn.
"""

from dpscale.measurement.decisions import MeasurementStore
from dpscale.measurement.measurement import Measurements, measure_all, measure_block, measure_layouts

__all__ = ["MeasurementStore", "Measurements", "measure_all", "measure_block", "measure_layouts"]
