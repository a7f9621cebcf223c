"""What ``edgerun bench`` says."""
