#!/usr/bin/python3
"""Each of examples/ without Muster, and on the virtual cluster with a rank killed twice: once it starts again cold, once warm.

Whatever happens, the loss of every step is that of the undisturbed run.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/cluster"), str(ROOT / "tests/support")]

import harness  # noqa: E402
import own_network  # noqa: E402
from harness import ClusterCase, Job  # noqa: E402
from vc import environment  # noqa: E402
from vc.names import BUILD_IN_NODE, SOURCE_IN_NODE  # noqa: E402

RANKS = 2
TEXT = "/usr/share/common-licenses/GPL-3"
STEPS, EVERY, HELD_AT = 30, 10, 27
IMPORTS = 300  # seconds, of several programs at once on a busy machine
_STEP = re.compile(r"^step (\d+) loss (\S+)$", re.MULTILINE)
_FINAL = re.compile(r"^final .*", re.MULTILINE)
_python = ""  # in the nodes


def setUpModule() -> None:
    global _python
    cluster = harness.start("examples", nodes=RANKS, ceph=False)
    _python = environment.make(cluster.directory / "home", "trainer", frameworks=True)


def losses(text: str) -> dict[int, str]:
    """By step. A step that was made again must have had the same loss."""
    found: dict[int, str] = {}
    for step, loss in _STEP.findall(text):
        if found.setdefault(int(step), loss) != loss:
            raise AssertionError(f"step {step} had loss {found[int(step)]}, and {loss} when it was made again")
    return found


class Examples(ClusterCase):
    def alone(self, words: list[str], directory: Path, more: dict[str, str]) -> str:
        """What rank 0 prints of a run without Muster, which is not disturbed."""
        port = str(own_network.PORT)
        variables = {"LOCAL_RANK": "0", "WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": "1", "OMP_NUM_THREADS": "1"}
        variables |= {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "JAX_COORDINATOR_ADDRESS": f"localhost:{port}", "TORCHELASTIC_RUN_ID": "1"}
        variables |= {"PYTHONPATH": f"{ROOT}/tests/frameworks/held:{os.environ['MUSTER_BUILD']}/python"}
        program = [str(ROOT / "tests/frameworks/python"), *(word.replace("{FILES}", str(directory)) for word in words)]
        # All ranks end with the shell, which ends when the first of them fails.
        shell = f'for RANK in {{0..{RANKS - 1}}}; do RANK=$RANK "$@" > out.$RANK 2>&1 & ranks+=($!); done; '
        shell += 'wait -n && for rank in "${ranks[@]}"; do wait "$rank" || exit; done'
        apart = own_network.within(["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", shell, "bash", *program])
        ranks = subprocess.Popen(apart, env={**os.environ, **variables, **more}, cwd=directory)
        try:
            self.wait(lambda: ranks.poll() is not None, f"{words[0]} to end", IMPORTS)
        finally:
            ranks.kill()
            code = ranks.wait()
        outs = [(directory / f"out.{rank}").read_text() for rank in range(RANKS)]
        self.assertEqual(code, 0, "\n".join(outs))
        return outs[0]

    def check(self, example: str, *options: str, own_checkpoints: bool = False) -> None:
        """`own_checkpoints`: they are the program's own, in a directory that all ranks see."""
        words = ["--text", TEXT, "--steps", str(STEPS), "--checkpoint-every", str(EVERY), *options]
        words += ["--output", "{FILES}/output"] if own_checkpoints else []
        local = [] if own_checkpoints else ["--checkpoints", "{FILES}/checkpoints"]
        ends = {"NO_GLOO": "1"} if example != "pytorch_fsdp2.py" else {}  # see docs/open.md
        with tempfile.TemporaryDirectory(prefix="muster-test-") as directory:
            said = self.alone([str(ROOT / "examples" / example), *words, *local], Path(directory), ends)
        undisturbed = losses(said)
        self.assertGreaterEqual(undisturbed.keys(), {2 * EVERY, HELD_AT // 5 * 5, STEPS})

        variables = {"PYTHONPATH": f"{SOURCE_IN_NODE}/tests/frameworks/held:{BUILD_IN_NODE}/python", "OMP_NUM_THREADS": "1", "HELD_AT": str(HELD_AT)} | ends
        job = self.srun([_python, f"{SOURCE_IN_NODE}/examples/{example}", *words], "warm=yes,restarts=10", tasks=RANKS, env=variables)
        first = job.wait_for_generation(1, RANKS, IMPORTS)
        if not own_checkpoints:
            self.wait(lambda: 2 * EVERY in self.checkpoints(job), "the checkpoint", IMPORTS)
        self.kill_member(first[1])
        second = job.wait_for_generation(2, RANKS, IMPORTS)
        self.wait(lambda: str(self.status(job)["warm"]).startswith(f"{RANKS} of {RANKS} standbys are ready"), "the standbys", IMPORTS)
        self.kill_member(second[0])
        job.wait_for_generation(3, RANKS, IMPORTS)
        warm = [f"{RANKS} of {RANKS} members were started warm"]
        self.wait(lambda: self.event_texts(job, "warm")[-1:] == warm, "the event")
        job.release()
        self.assertEqual(job.wait(IMPORTS), 0, job.err)
        self.assertEqual(job.out.count(f"rank 0 of {RANKS} resumed from step {2 * EVERY}\n"), 2)
        self.assertEqual(len(re.findall(f"^step {HELD_AT // 5 * 5} ", job.out, re.MULTILINE)), 3, "made again, and compared")
        self.assertEqual(losses(job.out), undisturbed)
        self.assertEqual(_FINAL.findall(job.out), _FINAL.findall(said))

    def checkpoints(self, job: Job) -> list[int]:
        done = self.muster("checkpoint", "list", job.gang, "--json")
        return [entry["step"] for entry in json.loads(done.stdout)["checkpoints"]] if done.returncode == 0 else []

    def test_pytorch_ddp(self) -> None:
        self.check("pytorch_ddp.py", "--log-every", "1")

    def test_pytorch_fsdp2(self) -> None:
        self.check("pytorch_fsdp2.py", "--log-every", "1")

    def test_hf_trainer(self) -> None:
        self.check("hf_trainer.py", own_checkpoints=True)

    def test_lightning_fit(self) -> None:
        self.check("lightning_fit.py", own_checkpoints=True)

    def test_jax_train(self) -> None:
        self.check("jax_train.py")


class Collectives(ClusterCase):
    def test_ranks_whose_collective_times_out_are_not_to_blame_for_the_one_that_stands_still(self) -> None:
        variables = {"PYTHONPATH": f"{BUILD_IN_NODE}/python", "OMP_NUM_THREADS": "1"}
        job = self.srun([_python, f"{SOURCE_IN_NODE}/tests/frameworks/stands_still.py"], "restarts=0", tasks=RANKS, env=variables)
        self.assertEqual(job.wait(IMPORTS), 0, job.err)
        faults = self.event_texts(job, "fault")
        self.assertEqual(len(faults), 1, faults)
        self.assertRegex(faults[0], r"rank 0 on n1 .* exited with code 1; it waited for others: rank 1 on n2 did not enter step 12, as 1 other did")
        self.assertEqual(self.status(job)["user_faults"], 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
