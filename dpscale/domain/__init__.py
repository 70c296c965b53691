"""Public description of a table: attributes, their cells, hierarchies and structural zeros."""

from dpscale.domain.domain import Attribute, Domain
from dpscale.domain.number import Number

__all__ = ["Attribute", "Domain", "Number"]
