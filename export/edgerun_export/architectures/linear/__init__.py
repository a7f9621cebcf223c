"""Decoders most of whose layers have linear attention: Qwen3-Next and Qwen3.5."""
