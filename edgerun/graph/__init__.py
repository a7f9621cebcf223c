"""The runtime's view of a model: a list of nodes over named values and memory-mapped constants."""
