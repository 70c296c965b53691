"""Privacy units: keys, units of linked tables, and the contribution bound."""
