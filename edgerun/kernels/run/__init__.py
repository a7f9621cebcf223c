"""Native programs: lists of kernel calls that several threads walk."""
