"""Converts every source's tokenizer to the files that Hugging Face's libraries read.

All functions are pure: from bytes or metadata to a mapping of file names to bytes.
"""

from edgerun_export.tokenizers.gguf import from_gguf
from edgerun_export.tokenizers.hugging_face import from_hugging_face
from edgerun_export.tokenizers.llama2c import from_llama2c

__all__ = ["from_gguf", "from_hugging_face", "from_llama2c"]
