"""A board without a board: what pynq finds in the place of one."""
