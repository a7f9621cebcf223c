"""The overlay as programs see it: commands, memory, registers, what it computes; for boards too."""
