"""Sources, boards and Vivado projects of the overlay."""
