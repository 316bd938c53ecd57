"""A Lightning Trainer that knows nothing of Muster, for the recovery benchmark: it resumes from its own checkpoint.

A callback notes what the benchmark times, and has each generation save once.
"""

import os
import time
from typing import Any

from recovery_marks import SAVED_AFTER, note  # first: it notes that the program has begun

import pytorch_lightning as pl
import torch

note("imported")
LAST = os.path.join(os.environ["BENCH_CHECKPOINTS"], "last.ckpt")


class Model(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Embedding(256, 16), torch.nn.Flatten(), torch.nn.Linear(16 * 32, 256))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return torch.nn.functional.cross_entropy(self.layers(batch[:, :-1]), batch[:, -1])

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Note(pl.Callback):
    def setup(self, *others: Any, **named: Any) -> None:
        note("joined")

    def on_train_start(self, trainer: Any, model: Any) -> None:
        note("restored")
        self.began = trainer.global_step

    def on_train_batch_end(self, trainer: Any, *others: Any) -> None:
        done = trainer.global_step - self.began
        if done == 1:
            note("stepped")
        if done == SAVED_AFTER:
            trainer.save_checkpoint(f"{LAST}.part", weights_only=False)
            if trainer.is_global_zero:  # it has written the file
                os.replace(f"{LAST}.part", LAST)
        if done == SAVED_AFTER + 1:  # rank 0 has made this step too
            note("saved")
        time.sleep(0.1)  # as steps on GPUs leave the processors


local = int(os.environ["LOCAL_WORLD_SIZE"])
batches = torch.utils.data.DataLoader(torch.arange(1 << 16).remainder(251).unfold(0, 33, 1), batch_size=32)
model = Model()
trainer = pl.Trainer(
    max_steps=1_000_000, devices=local, num_nodes=int(os.environ["WORLD_SIZE"]) // local, strategy="ddp", accelerator="cpu",
    callbacks=[Note()], logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)  # fmt: skip
trainer.fit(model, batches, ckpt_path=LAST if os.path.exists(LAST) else None)
