"""Whether a bundle computes what its checkpoint does."""
