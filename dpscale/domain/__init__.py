"""Public description of a table: attributes, their cells, hierarchies and structural zeros."""

from dpscale.domain.domain import Attribute, Domain
from dpscale.domain.hierarchy import Hierarchy
from dpscale.domain.number import MOST_PARTS, Number

__all__ = ["MOST_PARTS", "Attribute", "Domain", "Hierarchy", "Number"]
