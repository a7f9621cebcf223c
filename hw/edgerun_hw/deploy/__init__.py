"""Packages a bitstream, puts it on a board, and takes it back when anything goes wrong."""
