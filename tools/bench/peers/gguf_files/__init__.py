"""GGUF files with random weights in the shapes of known models, for llama.cpp to run."""
