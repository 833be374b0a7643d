"""Lightning. The validation keeps the logits of every batch on the GPU."""

import pytorch_lightning as lightning
import torch

from gpt import Gpt, loss_of


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model, self.kept = Gpt(layers=4), []

    def training_step(self, batch, _):
        return loss_of(self.model, batch)

    def validation_step(self, batch, _):
        self.kept.append(self.model(batch))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


def batches(count):
    return torch.utils.data.DataLoader([torch.randint(32000, (512,)) for _ in range(count)], batch_size=8)


trainer = lightning.Trainer(
    max_epochs=2,
    accelerator="gpu",
    devices=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    num_sanity_val_steps=0,
)
trainer.fit(Module(), batches(48), batches(400))
