"""Gemma 2, 3 and 4, with and without parts for pictures and sound beside the text model."""
