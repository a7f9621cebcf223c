"""Files of others, opened with care, and files of our own, kept from others."""
