"""Gemma 3 and 4, of which some checkpoints have parts for pictures and sound beside the text."""
