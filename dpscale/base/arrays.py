"""Array types by element, for annotations."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Integers32 = NDArray[np.int32]
Flags = NDArray[np.bool_]
Floats32 = NDArray[np.float32]
Words = NDArray[np.uint64]
