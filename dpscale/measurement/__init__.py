"""Measurement of a plan's decisions: exact counts plus keyed noise, and the durable store of the released values.

`measurement` applies an integer strategy to exact counts and adds keyed noise, all in integers. `value_files` defines
the layout of the value files, and `MeasurementStore` represents all of a release on disk. The caller charges the ledger
before it calls anything here.
"""

from dpscale.measurement.measurement import Measurements, measure_all, measure_block, measure_layouts
from dpscale.measurement.measurement_store import MeasurementStore

__all__ = ["MeasurementStore", "Measurements", "measure_all", "measure_block", "measure_layouts"]
