"""Boards in folders, sample applications, and what is not as it should be of either."""
