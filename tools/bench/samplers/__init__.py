"""What choosing a token costs, alone and in batches."""
