"""The ops of a lowered graph, one file each: adding one is adding a file.

Passes turn an ONNX graph into these ops; back-ends implement them. Values are ``[rows, width]``,
one row per token of the batch, so batch and sequence axes are gone; ``ids`` and ``positions`` are
the batch's. A file says what its op takes, makes and means, what it costs and what it remembers,
and gives examples, on which every back-end is tested.
"""
