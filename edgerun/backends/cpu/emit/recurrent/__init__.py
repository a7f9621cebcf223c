"""How ops of ``ops/recurrent`` run."""
