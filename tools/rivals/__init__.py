"""Ways to store weights that no bundle has, measured beside those that it has."""
