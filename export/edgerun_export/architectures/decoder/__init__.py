"""What a decoder consists of, and how config.json says it."""
