"""What formats and methods cost on one's own model, measured."""
