"""How each op of the schema becomes kernel calls."""
