"""What comes with a model and has to be executed is executed in a process under limits."""
