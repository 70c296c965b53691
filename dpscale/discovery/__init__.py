"""Searches for the cells of attributes that are not public: measurements, their costs, and the cells that follow."""
