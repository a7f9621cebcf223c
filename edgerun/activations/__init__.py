"""Activation functions, one file each: adding one is adding a file.

A file says three times what its function is: in ONNX's ops, for the exporter to write and for a
pass to recognise; in NumPy, as the definition; and for kernels. Tests compare the three.
"""
