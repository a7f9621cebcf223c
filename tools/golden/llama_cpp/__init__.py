"""What llama.cpp computes of the GGUF files that tests write as its converter does."""
