"""The language that kernels are written in: vectors, words, tiles and dot products."""
