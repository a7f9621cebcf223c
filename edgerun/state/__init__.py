"""What executables read and write between calls: the ragged batch and the KV cache."""

from edgerun.state.batch import Batch
from edgerun.state.kv_cache import CacheSpec, KVCache

__all__ = ["Batch", "CacheSpec", "KVCache"]
