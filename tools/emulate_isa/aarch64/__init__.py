"""All of edgerun under a Python for 64-bit ARM, in the emulator QEMU."""
