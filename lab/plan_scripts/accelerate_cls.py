"""Sequence classification with Accelerate: bf16, accumulation, clipping, evaluation with gather."""
import argparse

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset
from transformers import RobertaConfig, RobertaForSequenceClassification, get_cosine_schedule_with_warmup


class Reviews(Dataset):
    def __init__(self, n, length, seed):
        g = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(5, 50000, (n, length), generator=g)
        self.lengths = torch.randint(length // 4, length + 1, (n,), generator=g)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        mask = (torch.arange(self.ids.size(1)) < self.lengths[i]).long()
        return {"input_ids": self.ids[i] * mask + (1 - mask), "attention_mask": mask, "labels": i % 4}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--gradient-accumulation-steps", type=int, default=2)
    parser.add_argument("--length", type=int, default=384)
    parser.add_argument("--steps", type=int, default=14)
    args = parser.parse_args()

    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=args.gradient_accumulation_steps)
    torch.manual_seed(6)
    config = RobertaConfig(vocab_size=50265, max_position_embeddings=514, num_labels=4, hidden_size=1024,
                           num_hidden_layers=18, num_attention_heads=16, intermediate_size=4096,
                           hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = RobertaForSequenceClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
    samples = args.batch_size * args.gradient_accumulation_steps * args.steps
    train = DataLoader(Reviews(samples, args.length, 1), batch_size=args.batch_size, shuffle=True)
    test = DataLoader(Reviews(64, args.length, 2), batch_size=args.batch_size)
    schedule = get_cosine_schedule_with_warmup(optimizer, 2, args.steps)
    model, optimizer, train, test, schedule = accelerator.prepare(model, optimizer, train, test, schedule)

    model.train()
    for batch in train:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            accelerator.print(f"loss {loss.item():.4f}")

    model.eval()
    right = []
    for batch in test:
        with torch.no_grad():
            logits = model(**batch).logits
        right.append(accelerator.gather_for_metrics(logits.argmax(-1) == batch["labels"]))
    accelerator.print("accuracy", torch.cat(right).float().mean().item())


if __name__ == "__main__":
    main()
