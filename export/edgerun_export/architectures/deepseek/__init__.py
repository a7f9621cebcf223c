"""Architectures whose experts are chosen as DeepSeek chooses them, a file each."""
