"""What is measured, and models to measure with."""
