"""Turns a checkpoint into an ONNX bundle with ternary or low-bit weights."""
