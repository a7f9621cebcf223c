"""What programs have of experts: which rows go to which, in waves, as units of work."""
