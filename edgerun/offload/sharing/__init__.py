"""Layers of experts that the processor shares with a device.

Everything that does not depend on what the device is: what goes where, uploads, what is checked,
and what happens when the device fails. ``device.py`` says what a device has to do;
``offload/standin`` and ``offload/cuda`` are two.
"""
