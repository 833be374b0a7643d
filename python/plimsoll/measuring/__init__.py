"""What is measured on a GPU that is here: plimsoll.calibrate, plimsoll.fit_batch."""
