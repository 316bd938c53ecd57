"""A Hugging Face Trainer that knows nothing of Muster, for the recovery benchmark: it resumes from its own checkpoints, as the manual has it.

A callback notes what the benchmark times, and has each generation save once.
"""

import os
import time
from typing import Any

from recovery_marks import SAVED_AFTER, note  # first: it notes that the program has begun

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

note("imported")
OUTPUT = os.environ["BENCH_CHECKPOINTS"]


class Note(TrainerCallback):
    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        note("restored")
        self.began = state.global_step

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        done = state.global_step - self.began
        if done == 1:
            note("stepped")
        control.should_save = done == SAVED_AFTER
        if done == SAVED_AFTER + 1:  # rank 0, which saves, has made this step too
            note("saved")
        time.sleep(0.1)  # as steps on GPUs leave the processors


settings = TrainingArguments(OUTPUT, max_steps=1_000_000, save_strategy="no", use_cpu=True, disable_tqdm=True, report_to="none", dataloader_pin_memory=False)
note("joined")
model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0))
data = [{"input_ids": window, "labels": window} for window in torch.arange(1 << 16).remainder(251).unfold(0, 64, 64)]
trainer = Trainer(model, settings, train_dataset=data, callbacks=[Note()])
trainer.train(resume_from_checkpoint=get_last_checkpoint(OUTPUT) if os.path.isdir(OUTPUT) else None)
