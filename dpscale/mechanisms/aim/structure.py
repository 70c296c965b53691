"""Public structures: families of a Bayesian network, which an adaptive run measures before its first selection.

A family is an attribute with its parents. The structure is public, so its sets are measured without a selection, which
would have a cost. A family that is no candidate (too large, or in no set of the workload) is replaced by those of its
edges that are candidates.
"""

from __future__ import annotations

from collections.abc import Sequence

from dpscale.base.display import nearest
from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet
from dpscale.mechanisms.aim.setting import Setting
from dpscale.reconstruction.junction_tree import identifiers

FIELD = "mechanism.prior"
TAKES = "a file of the Bayesian Interchange Format (.bif), or a list of families: an attribute, then its parents"
MEANS = "public structure whose families the first round measures, without a selection"
Families = Sequence[Sequence[str]]  # jobs have these in place of the file that they name


def sets_of(families: Families | str, setting: Setting) -> tuple[AttributeSet, ...]:
    """Return the candidates that a structure names, in its order.

    Names may be those of the identifiers that `dpscale model` writes.

    Parameters
    ----------
    families : sequence of sequence of str, or str
        An attribute and its parents. A path is refused: jobs have read it already.
    setting : Setting

    Raises
    ------
    PlanError
        If an attribute is unknown or repeated, or no family has a candidate.
    """
    if isinstance(families, str):
        raise PlanError(FIELD, f"{families!r}, a file, outside a job", "a list of families", "list the families")
    # names as they are take precedence over those of identifiers
    names = dict(zip(identifiers(setting.sizes), setting.sizes, strict=True)) | {name: name for name in setting.sizes}
    for name in (name for family in families for name in family):
        if name not in names:
            raise PlanError(FIELD, f"the attribute {name!r}", "attributes of the domain", nearest(name, list(names)))
    if any(not family or len(set(family)) < len(family) for family in families):
        raise PlanError(FIELD, "a family that is empty or repeats a name", "an attribute, then its parents",
                        "remove it")  # fmt: skip

    candidates, named = set(setting.candidates), list[AttributeSet]()
    for family in families:
        child, *parents = [names[name] for name in family]
        whole = setting.ordered([child, *parents])
        # else the edges of the family
        named += [whole] if whole in candidates else [setting.ordered([child, parent]) for parent in parents]
    chosen = tuple(dict.fromkeys(candidate for candidate in named if len(candidate) > 1 and candidate in candidates))
    if families and not chosen:
        raise PlanError(FIELD, "a structure without a candidate", "an edge between attributes of one set of the "
                        "workload", "add such a set, or leave it out")  # fmt: skip
    return chosen
