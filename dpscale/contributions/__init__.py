"""Privacy units: keys, units of linked tables, and the bound on what one unit contributes."""
