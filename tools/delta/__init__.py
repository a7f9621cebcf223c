"""A fine-tune as a bundle of its base and a pruned difference of few bits (DARE), measured."""
