"""Hugging Face's Trainer with a batch that is too large."""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Random(torch.utils.data.Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, i):
        tokens = torch.randint(50257, (512,))
        return {"input_ids": tokens, "labels": tokens}


with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=48,
        max_steps=20,
        bf16=True,
        report_to=[],
        save_strategy="no",
        dataloader_num_workers=2,
    )
    model = GPT2LMHeadModel(GPT2Config(n_layer=6))
    Trainer(model=model, args=arguments, train_dataset=Random()).train()
