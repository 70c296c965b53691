"""The only room that reads records: Parquet and CSV in, codes and exact marginal counts out.

`Table` lists files without reading them; `encode` turns a column into cell numbers row by row, looking at no other row;
`count` counts joint codes; `units` bounds what one unit contributes; `snapshot` names the exact bytes that were read.
What leaves this room is exact, hence private: `ExactMarginal` hides its numbers from every repr.
"""

from dpscale.tables.count import ExactMarginal, count_marginals
from dpscale.tables.table import Partition, Table

__all__ = ["ExactMarginal", "Partition", "Table", "count_marginals"]
