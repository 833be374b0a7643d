import argparse

import torch
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForMaskedLM, get_linear_schedule_with_warmup

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=80)
parser.add_argument("--max-length", type=int, default=256)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--lr", type=float, default=1e-4)
args = parser.parse_args()

MASK, CLS, SEP, PAD = 103, 101, 102, 0
torch.manual_seed(7)
torch.set_float32_matmul_precision("high")

# documents of different lengths, the longest fill the window
gen = torch.Generator().manual_seed(7)
texts = []
for i in range(args.batch_size * args.steps):
    n = int(torch.randint(args.max_length // 2, args.max_length - 1, (1,), generator=gen))
    texts.append([CLS] + torch.randint(1000, 30000, (n,), generator=gen).tolist() + [SEP])


def collate(rows):
    ids = torch.full((len(rows), args.max_length), PAD)
    for k, row in enumerate(rows):
        ids[k, : len(row)] = torch.tensor(row)
    attention_mask = (ids != PAD).long()
    labels = ids.clone()
    chosen = (torch.rand(ids.shape) < 0.15) & (ids >= 1000)
    labels[~chosen] = -100
    ids = torch.where(chosen & (torch.rand(ids.shape) < 0.8), MASK, ids)
    return {"input_ids": ids, "attention_mask": attention_mask, "labels": labels}


loader = DataLoader(texts, batch_size=args.batch_size, shuffle=True, collate_fn=collate)
model = BertForMaskedLM(BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)).cuda()
no_decay = ("bias", "LayerNorm.weight")
groups = [
    {"params": [p for n, p in model.named_parameters() if not n.endswith(no_decay)], "weight_decay": 0.01},
    {"params": [p for n, p in model.named_parameters() if n.endswith(no_decay)], "weight_decay": 0.0},
]
optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.98))
scheduler = get_linear_schedule_with_warmup(optimizer, 4, args.steps)

model.train()
for step, batch in enumerate(loader):
    batch = {k: v.to("cuda") for k, v in batch.items()}
    loss = model(**batch).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    print(f"{step:4d}  loss {loss.item():.4f}  masked {(batch['labels'] != -100).sum().item()}")
