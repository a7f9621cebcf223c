"""The portable ONNX graph of a decoder, and the data file with its weights."""
