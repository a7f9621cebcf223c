"""Functions that a model may call: what they are, and calls of them read out of replies."""
