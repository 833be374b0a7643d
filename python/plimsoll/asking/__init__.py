"""What cuDNN itself says that the convolutions of a captured job take, asked without a GPU."""
