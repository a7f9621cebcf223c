"""All of edgerun on this processor and the tile instructions of AMX, which it lacks."""
