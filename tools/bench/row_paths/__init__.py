"""Which kernels are fastest for how many rows, beside what is chosen."""
