#!/usr/bin/env python3
"""Trains a small model on bytes with Lightning. Lightning's own checkpoint is --output/last.ckpt, which all ranks see.

    srun --gang --nodes=2 --ntasks-per-node=8 python3 examples/lightning_fit.py --text FILE --output DIRECTORY
"""
import argparse
import gc
import hashlib
import os

import muster
import pytorch_lightning as pl
import torch


class ByteModel(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Embedding(256, 16), torch.nn.Flatten(), torch.nn.Linear(16 * 32, 256))

    def training_step(self, batch, batch_idx):  # Lightning begins its loader anew when it resumes, so the step names the batch
        batch = batches[self.global_step].to(self.device)
        return torch.nn.functional.cross_entropy(self.layers(batch[:, :-1]), batch[:, -1])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Follow(pl.Callback):  # tells Muster each step, and Lightning what Muster wishes
    def on_train_batch_end(self, trainer, model, outputs, *others):
        wish = gang.step(step := trainer.global_step)
        if wish.save or step % options.checkpoint_every == 0:
            trainer.save_checkpoint(f"{last}.part", weights_only=False)
            if gang.rank == 0:  # a run that is killed in a save leaves the checkpoint before it whole
                os.replace(f"{last}.part", last)
        trainer.should_stop |= wish.exit
        if gang.rank == 0 and step % 5 == 0:
            print(f"step {step} loss {outputs['loss']:.6f}", flush=True)


parser = argparse.ArgumentParser()
for name, kind, default in ("--text", str, None), ("--output", str, None), ("--steps", int, 200), ("--checkpoint-every", int, 20):
    parser.add_argument(name, type=kind, default=default, required=default is None)
options = parser.parse_args()
gang = muster.init(fallback="local", directory=options.output)
last = os.path.join(options.output, "last.ckpt")
text = torch.tensor(list(open(options.text, "rb").read())).unfold(0, 33, 1)
batches = text[torch.randint(len(text), (options.steps, 32), generator=torch.Generator().manual_seed(gang.rank))]
torch.manual_seed(1)
model = ByteModel()
local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
if os.path.exists(last) and gang.rank == 0:
    print(f"rank 0 of {gang.world_size} resumed from step {torch.load(last)['global_step']}", flush=True)
trainer = pl.Trainer(max_steps=options.steps, devices=local, num_nodes=gang.world_size // local, callbacks=[Follow()], logger=False,
                     enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                     strategy="ddp_find_unused_parameters_true" if gang.world_size > 1 else "auto")  # plain ddp rounds otherwise if resumed
trainer.fit(model, range(options.steps), ckpt_path=last if os.path.exists(last) else None)
if gang.rank == 0 and trainer.global_step >= options.steps:
    print("final", hashlib.sha256(b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())).hexdigest(), flush=True)
del trainer
gc.collect()  # what holds the group keeps Gloo's threads, which may abort a process that ends
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
