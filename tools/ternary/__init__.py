"""Ternary weights of a checkpoint, trained: block by block, then on the logits of the whole."""
