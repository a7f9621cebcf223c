"""Runs edgerun on processors that are not at hand, in emulators."""
