"""Applications: what they declare, whether that is so, and where they lie."""
