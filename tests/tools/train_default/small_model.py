"""A model that is trained in seconds."""

from tools.train_default.recipe import ModelConfig

SMALL = ModelConfig(
    vocab_size=40,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    max_positions=16,
)
