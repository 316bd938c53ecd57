#!/usr/bin/python3
"""README.md's quick start is what it says: its sbatch file and its program are taken from there and run, a rank is killed."""

import re
import signal
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import harness  # noqa: E402
from harness import SOON, ClusterCase, Job  # noqa: E402
from vc.names import CONTROLLER, FRAMEWORKS_PYTHON  # noqa: E402

README = (HERE.parents[1] / "README.md").read_text(encoding="utf-8")
NODES = ("n1", "n2", "n3")
STEPS, EVERY = 80, 10
HELD = 45  # here all ranks wait until one of them has been killed
SAVED = 40  # the newest checkpoint before that
# What this machine lacks: GPUs, nodes, time, and today's PyTorch in the system's Python.
SCRIPT_CHANGES = {
    "--nodes=5 --ntasks-per-node=8 --gres=gpu:8": "--nodes=3 --ntasks-per-node=1",
    "--nnodes=4 --nproc-per-node=8": "--nnodes=3 --nproc-per-node=1",
}
PROGRAM_CHANGES = {
    'torch.device("cuda", int(os.environ["LOCAL_RANK"]))': 'torch.device("cpu")',
    "torch.cuda.set_device(device)\n": "torch.set_num_threads(1)\n",
    'init_process_group("nccl")': 'init_process_group("gloo")',
    "STEPS, EVERY = 10_000, 100\n": f"STEPS, EVERY = {STEPS}, {EVERY}\n",
    # A rank is killed in mid-training, however fast or slow this machine is.
    "import os\n": "import os\nimport time\n",
    "for step in range(first + 1, STEPS + 1):\n": "for step in range(first + 1, STEPS + 1):\n"
    f'    while step == {HELD} and not os.path.exists(os.environ["FILES"] + "/go"):\n'
    "        time.sleep(0.02)\n",
}


def block(language: str) -> str:
    """The one block of this language in README.md's quick start."""
    sections = re.findall(r"^## Quick start.*?(?=^## )", README, re.MULTILINE | re.DOTALL)
    blocks = [found for section in sections for found in re.findall(rf"^```{language}\n(.*?)^```$", section, re.M | re.S)]
    if len(blocks) != 1:
        raise AssertionError(f"README.md's quick start has {len(blocks)} blocks of {language}, not one")
    return blocks[0]


def after(diff: str) -> str:
    """What a diff makes of its file."""
    lines = diff.splitlines()
    if any(line[:1] not in ("+", "-", " ") for line in lines):
        raise AssertionError(f"a line of the diff begins with neither +, - nor a blank:\n{diff}")
    return "".join(line[1:] + "\n" for line in lines if not line.startswith("-"))


def change(text: str, changes: dict[str, str]) -> str:
    for old, new in changes.items():
        if text.count(old) != 1:
            raise AssertionError(f"{old!r} is {text.count(old)} times in:\n{text}")
        text = text.replace(old, new)
    return text


def setUpModule() -> None:
    harness.start("quickstart", nodes=len(NODES))


class QuickStart(ClusterCase):
    def submit(self) -> Job:
        home = self.cluster.directory / "home" / "trainer"
        (home / "train.py").write_text(change(block("python"), PROGRAM_CHANGES))
        (home / "train.sbatch").write_text(change(after(block("diff")), SCRIPT_CHANGES))
        argv = ["sbatch", "--wait", "--output={FILES}/out", "--error={FILES}/err", "train.sbatch"]
        return self.start_job(argv, env={"OMP_NUM_THREADS": "1", "PYTHON_EXEC": FRAMEWORKS_PYTHON})

    def seen(self, job: Job, kind: str, text: str) -> bool:
        """Whether the gang's history has this. A program that has ended too early will never make it so."""
        if not job.running():
            raise AssertionError(f"it ended with {job.wait()} before there was {kind}: {text}")
        if self.muster("status", job.gang).returncode != 0:
            return False
        return any(text in found for found in self.event_texts(job, kind))

    def find(self, job: Job, rank: int) -> tuple[str, str]:
        """The node and the process of a rank."""
        find = f"grep -lsz '^MUSTER_GANG={job.gang}$' /proc/[0-9]*/environ | xargs -r grep -lsz '^RANK={rank}$' | cut -d/ -f3"
        found = [(node, pid) for node in NODES for pid in self.cluster.exec(node, ["bash", "-c", find]).stdout.split()]
        self.assertEqual(len(found), 1, f"processes of rank {rank}")
        return found[0]

    def test_a_rank_that_is_killed_in_mid_training_is_restarted_from_a_checkpoint(self) -> None:
        job = self.submit()
        saved = f"checkpoint of step {SAVED}"
        self.wait(lambda: self.seen(job, "checkpoint", f"step {SAVED} is committed"), f"the {saved}", 2 * SOON)
        node, pid = self.find(job, 1)
        done = self.cluster.exec(node, ["kill", f"-{int(signal.SIGKILL)}", pid])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.wait(lambda: self.seen(job, "restore", f"generation 2 starts from the {saved}"), "generation 2", 2 * SOON)

        # There is no musterd on the host that has submitted it.
        self.assertIn("On a host without musterd, `muster` asks a node of your jobs.", " ".join(README.split()))
        asked = self.cluster.user(CONTROLLER, ["muster", "status", job.id])
        self.assertEqual(asked.returncode, 0, asked.stderr)
        self.assertIn(f"{job.gang}  ", asked.stdout)

        job.release()
        self.assertEqual(job.wait(2 * SOON), 0, job.err)
        for rank in (0, 1):
            self.assertEqual(job.out.count(f"rank {rank} starts after step 0\n"), 1, job.out)
            self.assertEqual(job.out.count(f"rank {rank} starts after step {SAVED}\n"), 1, job.out)
        fault = f"rank 1 on {node} (python3, pid {pid}) was killed by SIGKILL"
        self.assertTrue(any(fault in text for text in self.event_texts(job, "fault")), self.events(job))
        self.assertIn(fault, job.err)
        status = self.status(job)
        self.assertEqual((status["state"], status["succeeded"], status["generation"]), ("finished", True, 2))
        listed = self.muster_json("checkpoint", "list", "name=my-model")["checkpoints"]
        self.assertEqual(max(entry["step"] for entry in listed), STEPS)


if __name__ == "__main__":
    unittest.main(verbosity=2)
