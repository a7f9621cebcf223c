"""How ops become OpenVINO's, one file an op: supporting another is adding a file."""
