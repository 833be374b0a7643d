"""What a captured job finds around it: a device that is not there, a model of fake tensors."""
