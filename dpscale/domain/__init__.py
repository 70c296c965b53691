"""Public description of a table: attributes, their cells, hierarchies and structural zeros."""

from dpscale.domain.domain import Attribute, Domain

__all__ = ["Attribute", "Domain"]
