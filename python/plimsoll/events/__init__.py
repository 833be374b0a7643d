"""What a recorded job did, as typed events; two runs of it merged into one list."""
