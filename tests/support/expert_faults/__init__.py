"""Faults of models whose experts are read while they run, each with a name, and who tries them."""
