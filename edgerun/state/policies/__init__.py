"""Which of the pages that nobody uses is given up first: one policy a file, found by its name."""
