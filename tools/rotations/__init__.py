"""Rotations and scales that are learnt (OSTQuant), folded into the weights of a checkpoint."""
