"""What ``text_config`` of a Llama leaves out where it is the default of transformers."""

from __future__ import annotations

from edgerun_export.architectures.decoder.spec import Config

# Of LlamaConfig; LLaVA 1.5, for example, states no size but that of the vocabulary.
LLAMA: Config = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
