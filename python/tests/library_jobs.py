"""Training scripts over Lightning, accelerate and transformers, as their examples have them."""

LIGHTNING = """
import sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint

class Digits(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10))
        self.outputs = []

    def training_step(self, batch, index):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, index):
        out = self.net(batch[0])
        self.log("val_loss", nn.functional.cross_entropy(out, batch[1]))
        self.outputs.append(out)

    def on_validation_epoch_end(self):
        self.log("mean", torch.cat(self.outputs).mean())
        self.outputs.clear()

    def test_step(self, batch, index):
        self.log("test", self.net(batch[0]).mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())

def data(count):
    return TensorDataset(torch.randn(count, 784), torch.randint(0, 10, (count,)))

batch = int(sys.argv[1])
held_out = DataLoader(data(96), batch_size=batch)
trainer = L.Trainer(
    max_epochs=100, check_val_every_n_epoch=10, accelerator="gpu", devices=1, logger=False,
    enable_progress_bar=False,
    callbacks=[ModelCheckpoint("checkpoints", monitor="val_loss", every_n_epochs=10)],
)
trainer.fit(Digits(), DataLoader(data(400), batch_size=batch, shuffle=True), held_out)
trainer.test(ckpt_path="best", dataloaders=held_out)
"""

ACCELERATE = """
import sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

def data(count):
    return TensorDataset(torch.randint(0, 500, (count, 32)), torch.randint(0, 2, (count,)))

batch = int(sys.argv[1])
accelerator = Accelerator(gradient_accumulation_steps=2)
model = nn.Sequential(nn.Embedding(500, 128), nn.Flatten(), nn.Linear(32 * 128, 2))
optimizer = torch.optim.AdamW(model.parameters())
loader, held_out = DataLoader(data(400), batch_size=batch), DataLoader(data(96), batch_size=batch)
model, optimizer, loader, held_out = accelerator.prepare(model, optimizer, loader, held_out)
for epoch in range(2):
    model.train()
    for ids, labels in loader:
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.cross_entropy(model(ids), labels))
            optimizer.step()
            optimizer.zero_grad()
    model.eval()
    hits = 0
    for ids, labels in held_out:
        with torch.no_grad():
            predicted = model(ids).argmax(-1)
        predicted, labels = accelerator.gather_for_metrics((predicted, labels))
        hits += (predicted == labels).sum().item()
    accelerator.save_state(f"checkpoints/{epoch}")
    accelerator.load_state(f"checkpoints/{epoch}")
accelerator.save_model(model, "checkpoints/last")
"""

TRANSFORMERS = """
import sys, torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

class Texts(torch.utils.data.Dataset):
    def __init__(self, count):
        self.count = count
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        return {"input_ids": torch.arange(64), "labels": torch.arange(64)}

batch = int(sys.argv[1])
model = GPT2LMHeadModel(GPT2Config(vocab_size=500, n_positions=64, n_embd=64, n_layer=2, n_head=2))
arguments = TrainingArguments(
    "checkpoints", per_device_train_batch_size=batch, per_device_eval_batch_size=batch,
    max_steps=10_000, eval_strategy="steps", eval_steps=500, save_strategy="steps", save_steps=500,
    load_best_model_at_end=True, metric_for_best_model="eval_loss", report_to="none",
)
trainer = Trainer(model, arguments, train_dataset=Texts(400), eval_dataset=Texts(96))
trainer.train()
trainer.save_model("checkpoints/last")
again = GPT2LMHeadModel.from_pretrained("checkpoints/last").cuda()
"""
