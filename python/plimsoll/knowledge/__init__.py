"""What is known of values that a fake tensor does not have, and what is assumed of them."""
