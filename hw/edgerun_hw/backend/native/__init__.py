"""A token in one native program: the CPU back-end's kernels, and commands between them.

With the native host (``devices/native``) a segment is bound by the CPU back-end, but for its linear
layers: those become instructions that queue commands and take results (``multiply.py``), in the
same program as norms, rounding, rotary, attention and gates. Python is left once a batch.
"""
