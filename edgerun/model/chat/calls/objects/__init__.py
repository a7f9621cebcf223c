"""Calls that are written as JSON, objects or lists of them; the folder above has the others."""
