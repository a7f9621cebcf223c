"""Single kernels, compiled for other x86 processors, in the emulator Bochs."""
