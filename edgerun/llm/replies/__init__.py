"""Replies: written down token by token, read as they come, several to a prompt."""
