#!/usr/bin/env python3
"""Trains a small GPT-2 on bytes with transformers.Trainer. The Trainer's own checkpoints are in --output, which all ranks see.

    srun --gang --nodes=2 --ntasks-per-node=8 python3 examples/hf_trainer.py --text FILE --output DIRECTORY

All ranks save, and exit, at the step that Muster names. A run that was killed and started again ends with the same parameters.
"""
import argparse
import gc
import hashlib
from pathlib import Path

import muster
import torch
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainerCallback, TrainingArguments, logging, set_seed


class Follow(TrainerCallback):  # tells Muster each step, and the Trainer what Muster wishes
    def on_step_end(self, args, state, control, **others):
        wish = gang.step(state.global_step)
        control.should_save |= wish.save
        control.should_training_stop |= wish.exit

    def on_save(self, args, state, control, **others):
        args.distributed_state.wait_for_everyone()
        if state.is_world_process_zero:  # a run that is killed in a save leaves a checkpoint without this file
            Path(args.output_dir, f"checkpoint-{state.global_step}", "complete").touch()

    def on_log(self, args, state, control, logs, **others):
        if state.is_world_process_zero and "loss" in logs:
            print(f"step {state.global_step} loss {logs['loss']:.6f}", flush=True)


parser = argparse.ArgumentParser()
for name, kind, default in ("--text", Path, None), ("--output", Path, None), ("--steps", int, 200), ("--checkpoint-every", int, 20):
    parser.add_argument(name, type=kind, default=default, required=default is None)
options = parser.parse_args()
logging.set_verbosity_error()
logging.disable_progress_bar()
gang = muster.init(fallback="local", directory=options.output)
settings = TrainingArguments(
    str(options.output), max_steps=options.steps, save_steps=options.checkpoint_every, save_total_limit=3, logging_steps=5,
    use_cpu=not torch.cuda.is_available(),  # else each rank trains alone on a machine without GPUs
    ddp_find_unused_parameters=True,  # else DDP adds the gradients up in another order after a restart
    dataloader_pin_memory=False, disable_tqdm=True, report_to="none")
set_seed(settings.seed)
found = {int(file.parent.name.split("-")[1]): str(file.parent) for file in options.output.glob("checkpoint-*/complete")}
done = max(found, default=0)
if done and gang.rank == 0:
    print(f"rank 0 of {gang.world_size} resumed from step {done}", flush=True)
config = GPT2Config(vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
model = GPT2LMHeadModel.from_pretrained(found[done]) if done else GPT2LMHeadModel(config)
data = [{"input_ids": window, "labels": window} for window in torch.tensor(list(options.text.read_bytes())).unfold(0, 64, 64)]
trainer = Trainer(model, settings, train_dataset=data, callbacks=[Follow()])
trainer.remove_callback(PrinterCallback)
if done < options.steps:  # else the Trainer would do one step more
    trainer.train(resume_from_checkpoint=found.get(done))
if gang.rank == 0 and max(done, trainer.state.global_step) >= options.steps:
    print("final", hashlib.sha256(b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())).hexdigest(), flush=True)
del trainer
gc.collect()  # what holds the group keeps Gloo's threads, which may abort a process that ends
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
