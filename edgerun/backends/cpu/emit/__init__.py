"""How ops become kernel calls, one file an op; the others help linear layers."""
