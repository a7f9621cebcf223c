"""How fast this machine is, and whether anything else keeps it busy."""
