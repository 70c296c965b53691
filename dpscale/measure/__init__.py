"""Counts + plan + noise → Measurements, the released and durable thing.

`schedule` fixes, before anything is drawn, every block's exact noise variance and so the exact cost; `block` applies an
integer strategy to exact counts and adds keyed noise, all in integers; `store` keeps what is measured, one file each.
Nothing leaves this room that is not on the ledger first (the stages of `jobs` charge before they call).
"""

from dpscale.measure.block import measure_block
from dpscale.measure.orders import Order, carry_out, make_orders, measure_all
from dpscale.measure.schedule import Schedule, make_schedule
from dpscale.measure.store import Measurements

__all__ = [
    "Measurements",
    "Order",
    "Schedule",
    "carry_out",
    "make_orders",
    "make_schedule",
    "measure_all",
    "measure_block",
]
