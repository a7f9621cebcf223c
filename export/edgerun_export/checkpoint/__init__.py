"""Source checkpoints: Hugging Face folders and hub ids, GGUF files, llama2.c files."""

from edgerun_export.checkpoint.base import Checkpoint, Source, TensorInfo
from edgerun_export.checkpoint.registry import open_checkpoint

__all__ = ["Checkpoint", "Source", "TensorInfo", "open_checkpoint"]
