"""Searches for the cells of attributes that are not public: what is measured, its cost, and what follows from it."""
