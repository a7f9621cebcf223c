"""What sharing layers of experts with a device would come to; all of it is simulated."""
