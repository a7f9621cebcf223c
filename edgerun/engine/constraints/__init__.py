"""Replies that follow a grammar: what says so, how it is checked, and which tokens it allows."""
