import argparse
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Blocks(torch.utils.data.Dataset):
    def __init__(self, n, length):
        self.ids = torch.randint(0, 50257, (n, length), generator=torch.Generator().manual_seed(4))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.ids[i]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--max-steps", type=int, default=12)
    args = parser.parse_args()

    torch.manual_seed(4)
    config = GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
    model = GPT2LMHeadModel(config)
    with tempfile.TemporaryDirectory() as folder:
        training = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=args.batch_size,
            gradient_accumulation_steps=args.accumulate,
            learning_rate=3e-4,
            warmup_steps=3,
            max_grad_norm=1.0,
            bf16=True,
            max_steps=args.max_steps,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            seed=4,
        )
        trainer = Trainer(model=model, args=training, train_dataset=Blocks(512, args.length))
        trainer.train()


if __name__ == "__main__":
    main()
