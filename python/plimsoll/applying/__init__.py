"""plimsoll.apply: a way of a plan, set in a model and its optimizer."""
