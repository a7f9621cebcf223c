"""Which back-end runs which node, from what this machine was measured to do."""
