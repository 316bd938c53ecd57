"""Gangs of programs/keeper.py, whose members save a known state after each step that the test allows."""

import hashlib

from harness import PYTHON, SOURCE_IN_NODE, ClusterCase, Job

RANKS = 6
THIRD = "n3"  # the last node of a gang on three


class Keeper:
    """A gang of programs/keeper.py: it makes the steps that the test allows."""

    def __init__(self, case: ClusterCase, steps: int, gang: str = "", still: int = 0, nodes: int = 3) -> None:
        """`still`: so many bytes of each member's state are the same in all steps."""
        self.case = case
        self.steps = steps
        words = ["{FILES}", str(steps), "200000", str(still)]
        program = [*PYTHON, f"{SOURCE_IN_NODE}/tests/cluster/programs/keeper.py", *words]
        self.job: Job = case.srun(program, gang, nodes=nodes, tasks=RANKS // 3 * nodes)

    def _values(self, name: str) -> list[str]:
        paths = [self.job.files / f"{name}.{rank}" for rank in range(RANKS)]
        return [path.read_text().strip() for path in paths if path.exists()]

    def _all(self, name: str) -> set[str]:
        def there() -> bool:
            if not self.job.running() and len(self._values(name)) < RANKS:
                raise AssertionError(f"the gang ended with {self.job.wait()} before {name}")
            return len(self._values(name)) == RANKS

        self.case.wait(there, f"{name} of all members")
        return set(self._values(name))

    def allow(self, *steps: int) -> None:
        for step in steps:
            (self.job.files / f"step.{step}").touch()

    def forbid(self, step: int) -> None:
        (self.job.files / f"step.{step}").unlink()

    def commit(self, *steps: int) -> None:
        """Lets the gang make these steps, and waits until all members know that they are committed."""
        self.allow(*steps)
        self._all(f"committed.{steps[-1]}")

    def started(self, generation: int) -> int:
        """The step from which a generation started: the same for all its members."""
        steps = self._all(f"started.{generation}")
        self.case.assertEqual(len(steps), 1, f"generation {generation} started from {steps}")
        return int(steps.pop())

    def kill_one(self, node: str = THIRD) -> None:
        """Kills a node's last member's program."""
        find = f"grep -lsz '^MUSTER_GANG={self.job.gang}$' /proc/[0-9]*/environ | cut -d/ -f3"
        pids = self.case.cluster.exec(node, ["bash", "-c", find]).stdout.split()
        self.case.assertEqual(len(pids), RANKS // 3)
        self.case.cluster.exec(node, ["kill", "-9", pids[-1]])

    def finish(self, codes: tuple[int, ...] = (0,)) -> None:
        """Lets the gang end, and checks that every member's state is what it has to be. `codes`: srun's exit code."""
        self.allow(*range(1, self.steps + 1))
        self.case.assertIn(self.job.wait(), codes, self.job.err)
        self.case.assertEqual([p.read_text() for p in self.job.files.glob("wrong.*")], [])
        for rank in range(RANKS):
            state = hashlib.shake_128(f"{rank}/{self.steps}".encode()).digest(200_000)
            expected = hashlib.sha256(state).hexdigest()
            self.case.assertEqual((self.job.files / f"final.{rank}").read_text().strip(), expected)
