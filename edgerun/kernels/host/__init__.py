"""What kernels need of the system: cores, processor, permission, memory for code."""
