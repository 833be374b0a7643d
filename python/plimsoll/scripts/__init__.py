"""An unedited training script, captured: python -m plimsoll.script, plimsoll predict --run."""
