"""Architectures as GGUF files name them: what a row says, and families with files of their own."""
