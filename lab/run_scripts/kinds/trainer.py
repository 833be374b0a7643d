"""BERT under Hugging Face's Trainer."""

import argparse
import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--amp", action="store_true")
args = parser.parse_args()


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        tokens = torch.randint(0, 30000, (384,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": torch.tensor(index % 3)}


model = BertForSequenceClassification(BertConfig(num_labels=3))
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=args.batch,
        max_steps=5,
        bf16=args.amp,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    Trainer(model=model, args=arguments, train_dataset=Texts()).train()
