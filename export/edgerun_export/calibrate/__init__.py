"""What a model's activations tell about its weights."""
