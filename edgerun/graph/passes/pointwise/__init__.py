"""Forms that treat every row by itself, and that few models have."""
