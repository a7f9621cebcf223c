"""How long matrices and whole models take on the overlay: modelled, no board."""
