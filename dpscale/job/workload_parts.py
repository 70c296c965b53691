"""Construction of the workload's parts from the tables [[workload]] of a job."""

from __future__ import annotations

import numpy as np

from dpscale.base.display import nearest
from dpscale.base.errors import JobError
from dpscale.job.sections import PREDICATES, WorkloadSection
from dpscale.workload import Workload, family_names
from dpscale.workload.sums import OTHERS, SUM


def add_part(workload: Workload, part: WorkloadSection) -> None:
    """Add one table [[workload]] to a workload. Raises JobError for keys that do not fit its family."""
    if part.family == PREDICATES:
        _add_predicates(workload, part)
        return
    if part.family not in family_names():
        known = [*family_names(), PREDICATES]
        raise JobError("workload.family", f"{part.family!r}", ", ".join(known), nearest(part.family, known))
    if part.file is not None:
        raise JobError("workload.file", f"given for family {part.family!r}", f"family {PREDICATES} only", "remove it")
    if part.conditions is not None:
        raise JobError("workload.conditions", f"given for family {part.family!r}", f"family {PREDICATES} only",
                       "remove it")  # fmt: skip
    given = part.given if part.label is None else part.given | {"label": part.label}
    if part.record_weight is not None and part.family not in OTHERS:
        raise JobError("workload.record_weight", f"given for family {part.family!r}", f"family {', '.join(OTHERS)}",
                       "remove it")  # fmt: skip
    if part.record_weight is not None:  # the sum of the number over the records that each query counts
        workload.add(
            SUM, part.degree, part.attributes, part.weight, of=part.record_weight, queries=part.family, **given
        )
        return
    workload.add(part.family, part.degree, part.attributes, part.weight, part.p, part.seed, part.numeric, **given)


def _add_predicates(workload: Workload, part: WorkloadSection) -> None:
    """Add single counts, or queries from a .npy file of shape (m, n_a, n_b, …) over one attribute set."""
    if part.conditions is not None:
        _add_conditions(workload, part)
        return
    if part.file is None or part.attributes is None or len(part.attributes) != 1 or part.degree is not None:
        raise JobError(
            "workload",
            "predicates without required keys",
            "file and attributes = [[one set]], or conditions",
            "add them",
        )
    try:
        queries = np.load(part.file, allow_pickle=False)
    except (OSError, ValueError):
        raise JobError(
            "workload.file", f"{part.file} cannot be read", "an array file (.npy)", "save it with numpy"
        ) from None
    each = part.weight if isinstance(part.weight, list) else np.full(len(queries), part.weight)
    workload.add_queries(part.attributes[0], queries, each)


def _add_conditions(workload: Workload, part: WorkloadSection) -> None:
    given = [name for name in ("file", "attributes", "degree") if getattr(part, name) is not None]
    if given or isinstance(part.weight, list):
        raise JobError(f"workload.{(given or ['weight'])[0]}", "given together with conditions",
                       "conditions with one weight", "remove it")  # fmt: skip
    workload.add_conditions(part.conditions or [], part.weight, part.label)
