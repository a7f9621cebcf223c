"""How models write calls: a file for each form, which ends with a ``FORM``."""
