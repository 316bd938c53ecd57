#!/usr/bin/python3
"""A program that does not get on is started again, and whoever reads the report sees which rank, and where it stands."""

import re
import signal
import sys
import unittest
from collections.abc import Iterable
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
from harness import MEMBER, PROGRAMS, ClusterCase, Job  # noqa: E402
from vc.names import BUILD_IN_NODE, CEPH_NODE  # noqa: E402

NODES, TASKS = 3, 6
HANGS = 2  # the rank that stands still; the first one of n2
LIMIT_S = 10  # longer than a busy machine stands still
STARTUP_S = 20  # and than Python needs there from the start to its first step
OSDS = ("osd.0", "osd.1", "osd.2")

# A program whose members step together. step() returns when all have entered the step, as a collective would; a member
# that has left is waited for no longer.
TOGETHER = f"""
sys.path.insert(0, "{BUILD_IN_NODE}/python")
import muster
gang = muster.init()

def enter(step):
    with open(path(f"at.{{generation}}.{{rank}}.part"), "w") as file:
        file.write(str(step))
    os.rename(path(f"at.{{generation}}.{{rank}}.part"), path(f"at.{{generation}}.{{rank}}"))

def at(other):
    try:
        with open(path(f"at.{{generation}}.{{other}}")) as file:
            return float(file.read())
    except FileNotFoundError:
        return 0

def wait_for_the_others(step):
    until(lambda: all(at(other) >= step for other in range(world)))

def take(step):
    gang.step(step)
    enter(step)
    wait_for_the_others(step)
    time.sleep(0.02)

def take_until_released(step=0):
    while not os.path.exists(path("go")):
        step += 1
        take(step)
    enter("inf")

record()
"""

STUCK = (
    TOGETHER
    + f"""
def reads_a_batch_that_never_comes():
    while True:
        time.sleep(600)

for step in range(1, 20):
    take(step)
if generation == 1 and rank == {HANGS}:
    reads_a_batch_that_never_comes()
take_until_released(19)
"""
)


def setUpModule() -> None:
    # Ceph, because only a store that stands still makes a checkpoint slow.
    harness.start("hang", nodes=NODES, osds=3, settings={"store_timeout": "120s", "hang_report": "30s"})


class HangCase(ClusterCase):
    def are_at(self, job: Job, step: int, ranks: Iterable[int]) -> bool:
        """Whether these members have entered a step in generation 1."""
        places = [job.files / f"at.1.{rank}" for rank in ranks]
        return all(place.exists() and place.read_text() == str(step) for place in places)

    def check_report(self, job: Job, stack: str) -> None:
        """The job's stderr and the events name the rank, the step, and where it stands."""
        text = rf"rank {HANGS} on n2 did not enter step \d+, as 5 others did"
        self.wait(lambda: "restart, not counted against the limit" in job.err, "the report in the job's stderr")
        self.assertRegex(job.err, text)
        culprit = re.search(rf"rank {HANGS}:\n(.*?)(?=\n[^\n]*rank \d+: )", job.err, re.DOTALL)
        self.assertIsNotNone(culprit, job.err)
        assert culprit is not None
        self.assertRegex(culprit[1], stack)
        for rank in set(range(TASKS)) - {HANGS}:
            self.assertRegex(job.err, rf"rank {rank}: \S", "one line of every other rank")
        hangs = self.event_texts(job, "hang")
        self.assertEqual(len(hangs), 1, hangs)
        self.assertRegex(hangs[0], text)
        self.assertRegex(hangs[0], rf"\(limit {LIMIT_S}\.0 s: hang={LIMIT_S}\.0 s\)")
        stacks = self.event_texts(job, "stack")
        self.assertEqual(len(stacks), TASKS, stacks)
        self.assertRegex(next(text for text in stacks if text.startswith(f"rank {HANGS}: ")), stack)
        faults = self.event_texts(job, "fault")
        self.assertEqual(len(faults), 1, faults)
        self.assertRegex(faults[0], text)

    def check_end(self, job: Job) -> None:
        job.release()
        self.assertEqual(job.wait(), 0, job.err)
        status = self.status(job)
        self.assertEqual((status["succeeded"], status["generation"], status["restarts"]), (True, 2, 1))
        self.assertEqual(status["user_faults"], 0)

    def control(self) -> Job:
        """A gang with a short limit, which is found to hang four times once it is allowed to."""
        # Each time it comes further: else Muster would not start it again so often.
        code = TOGETHER + (
            "step = 100000 * generation\n"
            "for _ in range(10): step += 1; take(step)\n"
            "while not os.path.exists(path('hang')): step += 1; take(step)\n"
            "if generation < 5: time.sleep(600)\n"
            "take_until_released(step)"
        )
        control = self.gang(code, "hang=3s", nodes=1, tasks=2)
        control.wait_for_generation(1, 2)
        return control

    def outlives(self, job: Job, control: Job) -> None:
        """While the gang beside it hangs again and again, this one runs on."""
        (control.files / "hang").touch()
        control.wait_for_generation(5, 2, harness.SOON * 2)
        self.assertTrue(job.running(), job.err)
        self.assertEqual({record.generation for record in job.records()}, {1})
        self.assertEqual(len(job.records(1)), TASKS)
        control.release()
        self.assertEqual(control.wait(), 0, control.err)


class Hang(HangCase):
    """Row: Program hangs."""

    def test_a_python_program_is_started_again_and_the_rank_that_hangs_is_named_with_its_stack(self) -> None:
        job = self.gang(STUCK, f"hang={LIMIT_S}s", nodes=NODES, tasks=TASKS)
        first = job.wait_for_generation(1, TASKS)
        self.assertEqual(first[HANGS].host, "n2")
        job.wait_for_generation(2, TASKS)
        self.check_report(job, "reads_a_batch_that_never_comes")
        # The others' own view, so that one can tell who waits and who is waited for.
        self.assertRegex(job.err, r"rank 0: .*\buntil\b")
        self.check_end(job)

    def test_a_rank_that_stops_before_its_first_step_is_found_and_named_by_its_stack(self) -> None:
        code = TOGETHER + (
            "def reads_a_data_set_that_never_comes():\n"
            "    time.sleep(600)\n"
            "if generation == 1:\n"
            f"    if rank == {HANGS}: reads_a_data_set_that_never_comes()\n"
            "    try: os.mkfifo(path('never'))\n"
            "    except FileExistsError: pass\n"
            "    open(path('never')).read()\n"
            "take_until_released()"
        )
        job = self.gang(code, f"hang={LIMIT_S}s,startup={STARTUP_S}s", nodes=NODES, tasks=TASKS)
        job.wait_for_generation(1, TASKS)
        job.wait_for_generation(2, TASKS)
        hangs = self.event_texts(job, "hang")
        self.assertEqual(len(hangs), 1, hangs)
        self.assertRegex(hangs[0], rf"has not begun to step .* \(limit {STARTUP_S}\.0 s: startup={STARTUP_S}\.0 s\)")
        self.wait(lambda: "restart, not counted against the limit" in job.err, "the report in the job's stderr")
        self.assertRegex(job.err, rf"by the stacks rank {HANGS} on n2 stands elsewhere than most")
        self.assertRegex(job.err, rf"rank {HANGS}:\n(?:muster:   \|  *.*\n)*.*reads_a_data_set_that_never_comes")
        self.assertEqual(len(self.event_texts(job, "stack")), TASKS)
        self.check_end(job)

    def test_a_native_program_is_started_again_and_the_rank_that_hangs_is_named_with_its_stack(self) -> None:
        program = [f"{PROGRAMS}/hanging_member", "{FILES}", str(HANGS)]
        job = self.srun(program, f"hang={LIMIT_S}s", nodes=NODES, tasks=TASKS)
        job.wait_for_generation(1, TASKS)
        job.wait_for_generation(2, TASKS)
        self.check_report(job, "hanging_member_never_arrives")
        self.check_end(job)

    def test_flight_recorders_are_asked_for_their_dumps_before_the_stop(self) -> None:
        # The part of PyTorch's that answers: it makes the pipe, looks into it now and then, and writes a file.
        recorder = """
import threading
def answers():
    name = os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] + f"{rank}.pipe"
    if os.path.exists(name): os.unlink(name)
    os.mkfifo(name)
    with open(os.open(name, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as pipe:
        until(pipe.read)
    time.sleep(1)
    with open(path(f"dump.{generation}.{rank}"), "w") as file: file.write("all collectives")
threading.Thread(target=answers, daemon=True).start()
"""
        program = ["/usr/bin/env", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE={FILES}/trace_", *MEMBER, "{FILES}", recorder + STUCK]
        job = self.srun(program, f"hang={LIMIT_S}s,last_words=30", nodes=NODES, tasks=TASKS)
        job.wait_for_generation(2, TASKS)
        for rank in range(TASKS):
            self.assertEqual((job.files / f"dump.1.{rank}").read_text(), "all collectives")
        self.check_report(job, "reads_a_batch_that_never_comes")
        self.assertEqual(self.event_texts(job, "dump"), [f"{TASKS} members' flight recorders are asked for their dumps"])
        self.check_end(job)

    def test_members_that_wait_for_the_commit_of_one_that_never_saves_hang(self) -> None:
        code = TOGETHER + (
            "for step in range(1, 6): take(step)\n"
            f"if generation == 1 and rank == {HANGS}: time.sleep(600)\n"
            "gang.step(6); gang.save({'data': b'x' * 1000}, 6); gang.wait(6)\n"
            "take_until_released(6)"
        )
        job = self.gang(code, f"hang={LIMIT_S}s", nodes=NODES, tasks=TASKS)
        job.wait_for_generation(2, TASKS)
        self.assertRegex(self.event_texts(job, "hang")[0], rf"rank {HANGS} on n2 did not enter step 6")
        self.check_end(job)


class NoHang(HangCase):
    def test_hang_off_looks_for_none(self) -> None:
        job = self.gang(STUCK, "hang=off", nodes=NODES, tasks=TASKS)
        job.wait_for_generation(1, TASKS)
        self.wait(lambda: self.are_at(job, 20, set(range(TASKS)) - {HANGS}), "the hang")
        self.outlives(job, self.control())
        self.assertEqual(self.events(job, "hang"), [])

    def test_a_program_that_does_not_open_its_gang_may_sleep(self) -> None:
        job = self.gang("record(); time.sleep(3600)", "startup=3s", nodes=NODES, tasks=TASKS)
        job.wait_for_generation(1, TASKS)
        self.outlives(job, self.control())

    def test_a_limit_counts_from_the_first_progress_on(self) -> None:
        job = self.gang("record(); time.sleep(3600)", "hang=3s", nodes=NODES, tasks=TASKS)
        job.wait_for_generation(1, TASKS)
        self.outlives(job, self.control())

    def test_a_slow_checkpoint_is_no_hang(self) -> None:
        # Nothing is expected of a member before its first step.
        code = TOGETHER + (
            "until(lambda: os.path.exists(path('save')))\n"
            "gang.step(2); gang.save({'data': b'x' * 100000}, 2)\n"
            "enter(2); gang.wait(2); open(path(f'committed.{rank}'), 'w').close()\n"
            "take_until_released(2)"
        )
        # Shorter than the store stands still.
        job = self.gang(code, "hang=8s", nodes=NODES, tasks=TASKS)
        job.wait_for_generation(1, TASKS)
        control = self.control()  # no gang begins without the store
        for osd in OSDS:
            self.cluster.signal_daemon(CEPH_NODE, osd, signal.SIGSTOP)
        try:
            (job.files / "save").touch()
            self.wait(lambda: self.are_at(job, 2, range(TASKS)), "the saves")
            self.outlives(job, control)
            self.assertEqual(list(job.files.glob("committed.*")), [], "the store was slow")
        finally:
            for osd in OSDS:
                self.cluster.signal_daemon(CEPH_NODE, osd, signal.SIGCONT)
        self.wait(lambda: len(list(job.files.glob("committed.*"))) == TASKS, "the commit")
        job.release()
        self.assertEqual(job.wait(), 0, job.err)
        self.assertEqual(self.status(job)["generation"], 1)


class Straggler(HangCase):
    def stragglers(self, job: Job) -> list[int]:
        return [member["rank"] for member in self.status(job)["stragglers"]]

    def check_named(self, job: Job, rank: int, why: str) -> None:
        job.wait_for_generation(1, TASKS)
        self.wait(lambda: self.stragglers(job) == [rank], f"rank {rank} alone to be marked", harness.SOON * 2)
        self.assertRegex(self.muster("status", job.gang).stdout, rf"rank {rank} is slow: {why}")
        self.assertTrue([text for text in self.event_texts(job, "straggler") if text.startswith(f"rank {rank}: ")])
        self.assertEqual({record.generation for record in job.records()}, {1}, "slow is no fault")
        job.release()
        self.assertEqual(job.wait(), 0, job.err)

    def test_a_rank_whose_own_steps_are_slower_is_marked(self) -> None:
        code = TOGETHER + (
            "step = 0\n"
            "while not os.path.exists(path('go')):\n"
            "    step += 1; gang.step(step); time.sleep(0.5 if rank == 4 else 0.1)"
        )
        self.check_named(self.gang(code, nodes=NODES, tasks=TASKS), 4, r"a step takes \S+ \S+, the others")

    def test_a_rank_that_comes_late_to_every_step_is_marked_though_all_take_the_same(self) -> None:
        code = TOGETHER + (
            "step = 0\n"
            "while not os.path.exists(path('go')):\n"
            "    step += 1; time.sleep(1.8 if rank == 1 else 0.6); take(step)\n"
            "enter('inf')"
        )
        self.check_named(self.gang(code, nodes=NODES, tasks=TASKS), 1, r"enters a step \S+ \S+ after the others")


if __name__ == "__main__":
    unittest.main(verbosity=2)
