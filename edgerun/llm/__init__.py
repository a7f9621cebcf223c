"""The embedded Python API: text in, text out."""
