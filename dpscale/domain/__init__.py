"""Attributes, their cells, hierarchies and structural zeros: everything public about a table."""

from dpscale.domain.domain import Attribute, Domain

__all__ = ["Attribute", "Domain"]
