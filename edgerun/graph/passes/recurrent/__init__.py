"""What mixes the tokens of a sequence, each with a few before it or with a state."""
