"""From a kernel to machine code in memory: declared, compiled, cached, loaded."""
