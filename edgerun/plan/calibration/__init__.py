"""What this machine and its devices can do, measured for plans and for ``edgerun bench``."""
