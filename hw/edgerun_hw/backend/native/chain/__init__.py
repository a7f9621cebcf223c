"""Layers queued whole: found in a segment, placed on the device, queued, computed again."""
