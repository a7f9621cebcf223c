"""What the terminal shows, and how it is read."""
