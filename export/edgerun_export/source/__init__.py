"""What a checkpoint means: its decoder, and its weights as the model computes with them."""
