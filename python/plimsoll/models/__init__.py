"""Models by name, and the ways in which they are fine-tuned."""
