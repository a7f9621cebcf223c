"""The overlay's registers: their one description, and what is generated from it."""
