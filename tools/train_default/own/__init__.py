"""What the model learns from replies of its own."""
