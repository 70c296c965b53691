"""Static site of releases: pages of published tables and their attributes at permanent addresses."""
