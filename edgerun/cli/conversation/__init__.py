"""What ``edgerun chat`` holds a conversation with."""
