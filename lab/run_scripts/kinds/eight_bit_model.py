"""Writes the model that eight_bit.py trains: eight_bit_model.py FOLDER."""

import sys

from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    hidden_size=2048,
    intermediate_size=5504,
    num_hidden_layers=8,
    num_attention_heads=16,
    num_key_value_heads=8,
)
LlamaForCausalLM(config).half().save_pretrained(sys.argv[1])
