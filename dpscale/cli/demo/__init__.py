"""Demo: the RAND health insurance experiment (20,190 person-years, included in statsmodels), as partitioned Parquet.

It runs the main job and prints its three most informative answers and the next command.
"""

from dpscale.cli.demo.randhie import run_demo

__all__ = ["run_demo"]
