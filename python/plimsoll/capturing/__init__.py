"""plimsoll.capture: a training step, run on fake tensors and written down."""
