"""How weights lie in memory while kernels stream them."""
