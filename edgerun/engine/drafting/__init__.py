"""What replies may go on with, guessed before it is computed: one drafter a file."""
