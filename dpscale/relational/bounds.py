"""How far a unit's links can move what is measured: exact, in whole numbers.

A link gives the vector f = (√π_u φ, √π_v ψ, √π_uv φ⊗ψ), π the precision of each sum's noise, φ and ψ the features of
its rows, |φ|² ≤ U, |ψ|² ≤ V, inner products of two rows' at least g and h.

Add/remove (a row of the one side with at most d links): d² max |f|² = d² (π_u U + π_v V + π_uv U V).

Replace (a row of either side, with at most d links before and after): d² max |f − f′|². With s = ⟨φ, φ′⟩, t = ⟨ψ, ψ′⟩,
|f − f′|² = π_u(|φ|² + |φ′|² − 2s) + π_v(…− 2t) + π_uv(|φ|²|ψ|² + |φ′|²|ψ′|² − 2st) is bilinear in (s, t), so largest
at a corner of [g, U] × [h, V]: 2 max{π_u(U−g) + π_v(V−h) + π_uv(UV − gh), (U−g)(π_u + π_uv V), (V−h)(π_v + π_uv U)}. A
row that has fewer links after than before moves Σf − Σf′ by k differences and d − k single vectors, none longer than
a difference at the most: half the sum of the last two corners is |f|² already.

One-to-many: a unit is a parent with its d children; ψ is measured by the child table, so π_v = 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from dpscale.privacy.protection import REPLACE

Precisions = Sequence[Fraction]
Bounds = tuple[int | Fraction, int | Fraction]


def squared_distance(relation: str, u: Bounds, v: Bounds, precisions: Precisions) -> Fraction:
    """The largest squared move by one link. `u`, `v`: (U, g) and (V, h); `precisions`: π_u, π_v, π_uv."""
    (big_u, g), (big_v, h), (pu, pv, puv) = u, v, precisions
    alone = pu * big_u + pv * big_v + puv * big_u * big_v
    if relation != REPLACE:
        return Fraction(alone)
    both = pu * (big_u - g) + pv * (big_v - h) + puv * (big_u * big_v - g * h)
    one = (big_u - g) * (pu + puv * big_v)
    other = (big_v - h) * (pv + puv * big_u)
    return Fraction(max(2 * both, 2 * one, 2 * other, alone))
