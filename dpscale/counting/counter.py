"""A counter: what a program says, done to batches of codes, and the asked marginals at the end.

Joints have counters of 32 bits, which are summed into 64 bits long before they could overflow. Small batches are put
together first, so that thousands of tiny files cost their rows and not their number.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscale.counting.program import Program, Steps
from dpscale.records.encode import Codes

FLUSH_ROWS = 1 << 31
GATHER_ROWS = 1 << 18
GATHER_CODES = 1 << 25
ROWS = 64  # of a word of a bit plane


class Counter:
    """Exact counts of a program's sets; private, and never shown by repr."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._flat = np.zeros(program.cells, dtype=np.int64)
        self._joint = np.zeros(program.joint_cells, dtype=np.uint32)
        planes = program.planes
        self._planes = np.zeros(planes.offsets[-1] if planes else 0, dtype=np.int64)
        self._waiting: list[Codes] = []
        self._rows = self._narrow_rows = self._waiting_rows = 0

    def __repr__(self) -> str:
        return f"Counter of {self._program.cells} cells"

    def add(self, codes: Codes) -> None:
        """Count some rows: codes (attributes × rows) of the program's names, in their order, and maybe of others."""
        self._waiting.append(codes)
        self._waiting_rows += codes.shape[1]
        if self._waiting_rows >= min(GATHER_ROWS, max(GATHER_CODES // len(codes), 1)):
            self._count_waiting()

    def finish(self) -> NDArray[np.int64]:
        """The asked marginals one after another; the counter is used up."""
        from dpscale.counting.planes import assemble

        self._count_waiting()
        self._fold()
        planes, flat = self._program.planes, self._flat
        flat[self._program.empty] += self._rows
        if planes:
            assemble(self._rows, self._planes, planes.offsets, planes.sizes, planes.set_starts, planes.set_axes,
                     planes.set_nodes, planes.node_starts, planes.places, flat)  # fmt: skip
        del self._joint, self._planes
        return flat

    def _count_waiting(self) -> None:
        if not self._waiting_rows:
            return
        codes = self._waiting[0] if len(self._waiting) == 1 else np.concatenate(self._waiting, axis=1)
        self._waiting, self._waiting_rows = [], 0
        if self._narrow_rows + codes.shape[1] > FLUSH_ROWS:
            self._fold()
        self._rows += codes.shape[1]
        self._narrow_rows += codes.shape[1]
        for steps in self._program.joints:
            _increment(steps, codes, self._joint)
        for steps in self._program.direct:
            _increment(steps, codes, self._flat)
        self._count_planes(codes)

    def _count_planes(self, codes: Codes) -> None:
        from dpscale.counting.planes import count_planes

        planes, rows = self._program.planes, codes.shape[1]
        if planes:
            narrow = np.zeros((len(planes.columns), -(-rows // ROWS) * ROWS), dtype=np.uint8)
            narrow[:, :rows] = codes[planes.columns]
            count_planes(narrow.view(np.uint64), planes.sizes, planes.starts, planes.axis, planes.depth, planes.inner,
                         planes.offsets, planes.most_inner, self._planes)  # fmt: skip

    def _fold(self) -> None:
        """Sum the joints into the asked marginals and start them anew."""
        from dpscale.counting.counting_loops import fold

        f = self._program.folds
        if f and self._narrow_rows:
            fold(self._joint, f.offsets, f.cells, f.sizes, f.starts, f.owners, f.strides, f.stride_starts, f.places,
                 self._flat)  # fmt: skip
            self._joint[:] = 0
        self._narrow_rows = 0


def _increment(steps: Steps, codes: Codes, counters: NDArray[Any]) -> None:
    from dpscale.counting.counting_loops import count_codes

    levels, rows = steps.levels(codes.shape[1]), codes.shape[1]
    length = -(-rows // -(-rows // steps.block))  # blocks alike, since a short one serves large sets badly
    for first in range(0, rows, length):
        count_codes(codes[:, first : first + length], steps.columns, steps.sizes, steps.starts, steps.shared,
                    steps.offsets, steps.cells, counters, levels)  # fmt: skip
