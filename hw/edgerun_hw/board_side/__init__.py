"""What runs beside a board, under pynq's Python: the driver in a process of its own."""
