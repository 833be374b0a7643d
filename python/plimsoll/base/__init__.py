"""What every room may use, and what needs no other room."""
