"""Gangs of programs/keeper.py, whose members save a known state after each step that the test allows."""

import hashlib

from harness import PYTHON, SOON, SOURCE_IN_NODE, ClusterCase, Job
from object_names import rank_and_chunk
from pool import Rados

RANKS = 6
FIRST = ["n1", "n2", "n3"]
THIRD = "n3"  # the last node of a gang on three
OTHERS_HAVE_ALL = f"{RANKS - 2} shards from memory, 2 from partners, 0 from the store"  # of a lost node


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

    def _all(self, *names: str) -> tuple[str, set[str]]:
        """Waits until all members have written a file with one of these names. The result is that name, and what they wrote."""
        what = " or ".join(names)

        def there() -> str | None:
            over = not self.job.running()
            if name := next((name for name in names if len(self._values(name)) == RANKS), None):
                return name
            if over:
                raise AssertionError(f"the gang ended with {self.job.wait()} before {what}")
            return None

        name = self.case.wait(there, f"{what} of all members")
        return name, set(self._values(name))

    def committed(self, step: int) -> list[str]:
        """What members have written that know this step to be committed."""
        return self._values(f"committed.{step}")

    def allow(self, *steps: int) -> None:
        for step in steps:
            (self.job.files / f"step.{step}").touch()

    def forbid(self, step: int) -> None:
        (self.job.files / f"step.{step}").unlink()

    def commit(self, *steps: int) -> None:
        """Lets the gang make these steps, and waits until all members know that they are committed."""
        self.allow(*steps)
        self._all(f"committed.{steps[-1]}")

    def restarted(self, *generations: int) -> tuple[int, int]:
        """The first of these generations of which all members have started, and the step from which: the same for all."""
        name, steps = self._all(*(f"started.{generation}" for generation in generations))
        self.case.assertEqual(len(steps), 1, f"{name}: {steps}")
        return int(name.split(".")[1]), int(steps.pop())

    def started(self, generation: int) -> int:
        """The step from which a generation started."""
        return self.restarted(generation)[1]

    def kill_one(self, node: str = THIRD) -> None:
        """Kills a node's last member's program."""
        find = f"grep -lsz '^MUSTER_GANG={self.job.gang}$' /proc/[0-9]*/environ | cut -d/ -f3"

        def found() -> list[str]:
            pids = self.case.cluster.exec(node, ["bash", "-c", find]).stdout.split()
            return pids if len(pids) == RANKS // 3 else []

        pids = self.case.wait(found, f"the members of {node}")
        self.case.cluster.exec(node, ["kill", "-9", pids[-1]])

    def finish(self) -> None:
        """Lets the gang end, and checks that every member's state is what it has to be."""
        self.allow(*range(1, self.steps + 1))
        self.case.assertEqual(self.job.wait(), 0, self.job.err)
        self.case.assertEqual([p.read_text() for p in self.job.files.glob("wrong.*")], [])
        for rank in range(RANKS):
            state = hashlib.shake_128(f"{rank}/{self.steps}".encode()).digest(200_000)
            expected = hashlib.sha256(state).hexdigest()
            self.case.assertEqual((self.job.files / f"final.{rank}").read_text().strip(), expected)


class KeeperCase(ClusterCase):
    """Tests of where a gang of Keeper gets its state from."""

    def restored(self, keeper: Keeper) -> list[str]:
        """What was told of where a generation's state came from: "N shards from memory, M from partners, K from the store" of each."""
        texts = self.event_texts(keeper.job, "restored")
        return [text.split(": ")[1].split(";")[0] for text in texts]

    def with_spares(self, spares: int = 1) -> Keeper:
        # Else the gang would have other nodes than the first ones, when the test before has lost one of them.
        self.wait_until_idle()
        return Keeper(self, 6, gang=f"spares={spares}", nodes=3 + spares)

    def musterds_said(self, words: list[str]) -> bool:
        """Whether each of these stands in some node's log."""
        logs = [path.read_text(errors="replace") for path in (self.cluster.directory / "log").glob("*musterd*.log")]
        return all(any(line in log for log in logs) for line in words)

    def remove_objects(self, keeper: Keeper, step: int, *ranks: int) -> None:
        """Removes the chunks of these ranks' shards of a step from the store, four of each."""
        rados = Rados(self.cluster, "trainer")
        names = rados.list(f"data/{keeper.job.key}/{step}.")
        removed = [name for name in names if (of := rank_and_chunk(name)) and of[0] in ranks]
        self.assertEqual(len(removed), 4 * len(ranks))
        for name in removed:
            rados.run("rm", name)

    def lose(self, *nodes: str) -> None:
        for node in nodes:
            self.addCleanup(self.cluster.revive, node)
        for node in nodes:
            self.cluster.kill(node)

    def damage_copies(self, node: str) -> None:
        """Flips a byte of what a node keeps for others."""
        code = (
            "import os, subprocess\n"
            "pid = subprocess.run(['pidof', '-s', 'musterd'], capture_output=True, text=True).stdout.strip()\n"
            "links = {fd: os.readlink(f'/proc/{pid}/fd/{fd}') for fd in os.listdir(f'/proc/{pid}/fd')}\n"
            "fd = next(fd for fd, link in links.items() if 'memfd:muster-partner' in link)\n"
            "file = os.open(f'/proc/{pid}/fd/{fd}', os.O_RDWR)\n"
            "at = os.lseek(file, 0, os.SEEK_DATA) + 100\n"
            "os.pwrite(file, bytes([os.pread(file, 1, at)[0] ^ 1]), at)\n"
        )
        done = self.cluster.exec(node, ["/usr/bin/python3", "-c", code])
        self.assertEqual(done.returncode, 0, done.stderr)


class LostNodes(KeeperCase):
    """Tests of a gang on n1, n2 and n3, whose nodes keep something of each other. Import the module, not the name: unittest
    would run these tests too."""

    after_two = ""  # where the state comes from when n1 and n3 are lost: by shards

    def keep(self, keeper: Keeper, nodes: list[str], *steps: int) -> None:
        """Lets the gang make these steps, and waits until the others keep what they are to keep of the last one."""
        raise NotImplementedError

    def test_a_node_that_takes_a_dead_ones_place_needs_no_store(self) -> None:
        keeper = self.with_spares()
        self.keep(keeper, FIRST, 1, 2, 3)
        self.remove_objects(keeper, 3, 4, 5)
        self.lose("n3")
        self.assertEqual(keeper.started(2), 3)
        keeper.finish()
        self.assertEqual(self.restored(keeper), [OTHERS_HAVE_ALL])
        self.assertEqual(self.event_texts(keeper.job, "checkpoint_bad"), [])

    def test_what_is_damaged_is_made_good_from_the_store(self) -> None:
        keeper = self.with_spares()
        self.keep(keeper, FIRST, 1, 2)
        self.damage_copies("n2")
        self.lose("n3")
        self.assertEqual(keeper.started(2), 2)
        keeper.finish()
        self.assertEqual(self.restored(keeper), [f"{RANKS - 2} shards from memory, 1 from partners, 1 from the store"])

    def test_what_two_lost_nodes_had_of_each_other_is_read_from_the_store(self) -> None:
        keeper = self.with_spares(2)
        self.keep(keeper, FIRST, 1, 2)
        self.lose("n1", "n3")
        # Both at once, or one after the other: the state is whole in the last generation only.
        self.wait(lambda: self.restored(keeper), "the state to be there again", 2 * SOON)
        keeper.finish()
        self.assertEqual(self.restored(keeper)[-1], self.after_two)

    def test_the_next_generation_keeps_it_on_the_nodes_that_it_has(self) -> None:
        keeper = self.with_spares(2)
        self.keep(keeper, FIRST, 1, 2)
        self.lose("n3")
        self.assertEqual(keeper.started(2), 2)
        self.keep(keeper, ["n1", "n2", "n4"], 3, 4)
        self.lose("n4")  # which had taken n3's place
        self.assertEqual(keeper.started(3), 4)
        keeper.finish()
        self.assertEqual(self.restored(keeper), [OTHERS_HAVE_ALL, OTHERS_HAVE_ALL])
