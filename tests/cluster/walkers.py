"""Gangs of programs/walker.py, and what the tests of lost nodes, coordinators and daemons ask of them."""

import json
import re
import time
from typing import Any

from harness import PYTHON, SLURM, SOON, SOURCE_IN_NODE, ClusterCase, Job, Record
from lives import Life, check_generations, read_lives, set_target
from vc.names import CONTROLLER

_NUMBERS, _EVERY = 60, 5


def expected(step: int) -> list[int]:
    """The numbers after a step, as programs/walker.py makes them."""
    values = [0] * _NUMBERS
    for number in range(1, step + 1):
        values = [(v * 6364136223846793005 + i * 1442695040888963407 + number) % 2**64 for i, v in enumerate(values)]
    return values


class Walkers:
    """A gang that walks and saves until the test lets it end."""

    def __init__(self, case: "WalkerCase", job: Job) -> None:
        self.case = case
        self.job = job

    # --- what it shows

    def lives(self, generation: int | None = None) -> list[Life]:
        return [life for life in read_lives(self.job.files) if generation in (None, life.generation)]

    def committed(self) -> int:
        return max((life.committed for life in self.lives()), default=0)

    def generation(self) -> int:
        return max((life.generation for life in self.lives()), default=0)

    # --- what a test waits for

    def started(self, generation: int, members: int, timeout: float = SOON) -> list[Record]:
        """Waits until all members of a generation are at work, each from the same step."""
        records = self.job.wait_for_generation(generation, members, timeout)
        steps = {record.said["from"] for record in records}
        self.case.assertEqual(len(steps), 1, f"generation {generation} began from {steps}")
        self.case.assertEqual({int(r.env["WORLD_SIZE"]) for r in records}, {members})
        self.case.assertEqual([r.rank for r in records], list(range(members)))
        return records

    def commits(self, generation: int, beyond: int | None = None, timeout: float = SOON) -> int:
        """Waits until a generation has committed one more checkpoint, or one beyond a step; gives the step."""
        first = self.committed() if beyond is None else beyond

        def more() -> int:
            newest = max((life.committed for life in self.lives(generation)), default=0)
            if newest > first:
                return newest
            self.case.assertTrue(self.job.running(), "the gang has ended")
            return 0

        return self.case.wait(more, f"a checkpoint of generation {generation} beyond step {first}", timeout)

    def stays(self, seconds: float) -> None:
        """Checks that no other generation starts for so long: for what is to be seen when a response is switched off."""
        generation = self.generation()
        until = time.monotonic() + seconds
        self.case.wait(lambda: time.monotonic() > until or self.generation() != generation, "the time", seconds + SOON)
        self.case.assertEqual(self.generation(), generation, "something has responded all the same")

    def grows_old(self, seconds: float = 0.5) -> None:
        """Waits until the members that live now have lived on for so long."""
        generation = self.generation()
        until = time.clock_gettime(time.CLOCK_BOOTTIME) + seconds
        self.case.wait(lambda: all(life.last > until for life in self.lives(generation)), "the members to live on")

    # --- what must hold

    def check_generations(self) -> None:
        check_generations(self.case, self.lives())

    def check_restored(self, generation: int, at_least: int) -> None:
        """A generation began from a checkpoint that is not older than this one (walker.py has compared every bit)."""
        self.case.assertEqual([path.read_text() for path in self.job.files.glob("wrong.*")], [])
        for record in self.job.records(generation):
            self.case.assertGreaterEqual(record.said["from"], at_least)

    def gather(self, members: int, timeout: float = SOON) -> int:
        """Lets all come to one step, at which they wait; gives it."""
        generation = self.generation()
        target = 0

        def there() -> bool:
            nonlocal target
            lives = self.lives(generation)
            if max(life.step for life in lives) > target or target == 0:
                target = (max(life.step for life in lives) // _EVERY + 4) * _EVERY
                set_target(self.job.files, target)
            self.case.assertEqual(self.generation(), generation, "no other generation starts")
            return len(lives) >= members and all(life.committed == target for life in lives)

        self.case.wait(there, "all members at one step", timeout)
        return target

    def end(self, members: int, timeout: float = SOON) -> int:
        """Lets all end at one step, and checks srun's exit code; gives the step."""
        target = self.gather(members, timeout)
        self.job.release()
        self.case.assertEqual(self.job.wait(timeout), 0, self.job.err)
        self.case.assertEqual([path.read_text() for path in self.job.files.glob("wrong.*")], [])
        self.check_generations()
        return target

    def finish(self, members: int, timeout: float = SOON) -> None:
        """As end(), and checks every number."""
        target = self.end(members, timeout)
        values: dict[int, int] = {}
        for rank in range(members):
            final = json.loads((self.job.files / f"final.{rank}").read_text())
            self.case.assertEqual((final["world"], final["step"]), (members, target))
            values.update(final["values"])
        self.case.assertEqual([values[index] for index in range(_NUMBERS)], expected(target))


class WalkerCase(ClusterCase):
    """Tests with gangs of walkers on a cluster whose nodes the tests break; each test leaves it whole."""

    PROGRAM = [*PYTHON, f"{SOURCE_IN_NODE}/tests/cluster/programs/walker.py", "{FILES}"]

    def setUp(self) -> None:
        self.addCleanup(self.mend)

    def walk(self, gang: str = "", words: tuple[str, ...] = (), **kw: Any) -> Walkers:
        """An srun from the submit host; `words` are more words for programs/walker.py."""
        return Walkers(self, self.srun([*self.PROGRAM, *words], f"hang=off{',' * bool(gang)}{gang}", **kw))

    def walk_in_batch(
        self, gang: str = "", nodes: int = 3, per_node: int = 2, directives: str = "", after: str = "", words: str = ""
    ) -> Walkers:
        """An sbatch job; its script waits for its srun and then runs `after`. `words`: as of walk()."""
        script = f"#SBATCH -N{nodes} --ntasks-per-node={per_node} --gang=hang=off{',' * bool(gang)}{gang} {directives}\n"
        script += f"srun {' '.join(self.PROGRAM)} {words}\ncode=$?\n{after}\nexit $code\n"
        return Walkers(self, self.batch(script))

    # --- Slurm

    def job_state(self, job: Job) -> str:
        return self.cluster.exec(CONTROLLER, ["squeue", "-h", "-t", "all", "-j", job.id, "-o", "%T"]).stdout.strip()

    def final_state(self, job: Job) -> str:
        """The state that Slurm gives a job whose processes have all ended, or all components of one; several, if they differ."""

        def ended() -> str:
            states = set(self.job_state(job).split())
            return "" if states & {"RUNNING", "COMPLETING"} else " ".join(sorted(states))

        return self.wait(ended, "the job's end in Slurm", SLURM)

    def wait_for_state(self, node: str, pattern: str, timeout: float = SOON) -> str:
        def found() -> str:
            state = self.node_states()[node]
            return state if re.match(pattern, state) else ""

        return self.wait(found, f"Slurm to show {node} as {pattern}", timeout)

    def alive(self, record: Record) -> bool:
        """Whether a member's program is still there."""
        return self.cluster.exec(record.host, ["kill", "-0", str(record.pid)]).returncode == 0

    def member_processes(self, node: str, job: Job) -> list[str]:
        """Programs of a gang on a node: those that have its environment."""
        search = f"grep -lsz '^MUSTER_GANG={job.id}\\.' /proc/[0-9]*/environ | cut -d/ -f3"
        return self.cluster.exec(node, ["bash", "-c", search]).stdout.split()
