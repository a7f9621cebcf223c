"""What openvino-genai wants in a folder, written beside the ONNX graph.

That is a model in OpenVINO's format (IR) with its cache inside, which shares the ONNX graph's
weights, and a tokenizer as a graph. Only ``install`` may be imported where OpenVINO is not.
"""
