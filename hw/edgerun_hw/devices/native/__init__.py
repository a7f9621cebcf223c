"""The native host: an overlay's registers and memory in edgerun's own process, without pynq.

Registers are mapped through UIO or ``/dev/mem`` (``kernel.py``), memory in one piece comes from
u-dma-buf (``memory.py``). Both make the same ``port.DevicePort`` that the driver stands on
everywhere (``port.py``).
"""
