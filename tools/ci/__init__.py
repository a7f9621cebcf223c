"""What the repository is held to, and what is written into it."""
