"""The training loop for any task, killed at any instant and resumed to the same result."""
