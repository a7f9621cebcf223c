"""Passes turn the exporter's ONNX forms into the ops of ``ops/``, one form a file.

A pass rewrites the nodes that it recognises and leaves the others alone. What stays unrecognised
keeps its ONNX name, and is refused (``graph/lower.py``). A pattern says all of a form: op, inputs,
and the attributes that matter; ``attributes.py`` sees to it that there are no others.
"""
