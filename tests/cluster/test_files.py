#!/usr/bin/python3
"""--gang=files=yes: directories that a program writes are checkpoints, of programs that know nothing of Muster."""

import hashlib
import json
import sys
import unittest
from pathlib import Path
from typing import Any

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
from harness import BUILD_IN_NODE, PYTHON, SOON, SOURCE_IN_NODE, ClusterCase, Job  # noqa: E402
from object_names import rank_and_chunk  # noqa: E402
from pool import Rados  # noqa: E402

NODES = ("n1", "n2", "n3")
# From the store, always: what is damaged there is to be found.
SETTINGS = {"max_shard_size": "64MiB", "recovery_memory": "0", "partner_memory": "0"}


def setUpModule() -> None:
    plugins = [f"required {BUILD_IN_NODE}/tests/mount_namespace.so"]
    harness.start("files", nodes=3, limits=harness.RESTARTS, settings=SETTINGS, plugins=plugins)


class Writers:
    """A gang of programs/step_writer.py: it makes the steps that the test allows."""

    def __init__(self, case: "FilesCase", steps: int, gang: str = "", ranks: int = 4, **kw: Any) -> None:
        self.case, self.steps, self.ranks = case, steps, ranks
        program = [*PYTHON, f"{SOURCE_IN_NODE}/tests/cluster/programs/step_writer.py", "{FILES}", str(steps)]
        options = {"nodes": 2, "tasks": ranks} | kw
        self.job: Job = case.srun(program, f"files=yes,{gang}" if gang else "files=yes", **options)

    def allow(self, *steps: int) -> None:
        for step in steps:
            (self.job.files / f"step.{step}").touch()

    def wait_for(self, name: str, timeout: float = SOON) -> list[str]:
        """What each member has written in a file of this name."""
        paths = [self.job.files / f"{name}.{rank}" for rank in range(self.ranks)]

        def there() -> bool:
            if not self.job.running() and not all(path.exists() for path in paths):
                raise AssertionError(f"the gang ended with {self.job.wait()} before {name}: {self.job.err}{self.wrong()}")
            return all(path.exists() for path in paths)

        self.case.wait(there, f"{name} of all members", timeout)
        return [path.read_text() for path in paths]

    def wrong(self) -> list[str]:
        return [path.read_text() for path in self.job.files.glob("wrong.*")]

    def commit(self, *steps: int) -> None:
        self.allow(*steps)
        for step in steps:
            self.wait_for(f"committed.{step}")

    def started(self, generation: int, timeout: float = SOON) -> list[dict[str, Any]]:
        """Where the members of a generation are; all of them start from the same step, `step`."""
        texts = self.wait_for(f"started.{generation}", timeout)
        found = []
        for text in texts:
            step, who = text.split("\n", 1)
            found.append(json.loads(who) | {"step": int(step)})
        self.case.assertEqual(len({one["step"] for one in found}), 1, found)
        return found

    def finish(self, timeout: float = SOON) -> None:
        self.allow(*range(1, self.steps + 1))
        self.case.assertEqual(self.job.wait(timeout), 0, self.job.err)
        self.case.assertEqual(self.wrong(), [])


class FilesCase(ClusterCase):
    def setUp(self) -> None:
        self.addCleanup(self.check_nothing_left)

    def check_nothing_left(self) -> None:
        """No process and no directory stays when the jobs have ended."""
        for job in self.jobs:
            job.end()
        left = "pgrep -x muster-files; ls -d /tmp/muster-files-* 2>/dev/null; true"
        for node in NODES:
            self.wait(lambda node=node: self.cluster.exec(node, ["bash", "-c", left]).stdout == "", f"nothing to be left on {node}")

    def kill(self, member: dict[str, Any]) -> None:
        done = self.cluster.exec(member["host"], ["kill", "-9", str(member["pid"])])
        self.assertEqual(done.returncode, 0, done.stderr)

    def steps(self, job: Job) -> list[int]:
        return [entry["step"] for entry in self.muster_json("checkpoint", "list", job.gang)["checkpoints"]]

    def shell(self, script: str, gang: str = "", **kw: Any) -> Job:
        options = {"nodes": 1, "tasks": 1} | kw
        return self.srun(["bash", "-c", script], f"files=yes,restarts=0{gang}", **options)


class Restores(FilesCase):
    def test_a_member_that_is_killed_finds_its_newest_directory_bit_for_bit(self) -> None:
        gang = Writers(self, steps=5)
        first = gang.started(1)
        self.assertEqual(first[0]["step"], 0)
        gang.commit(1, 2)
        self.kill(first[3])
        second = gang.started(2)
        self.assertEqual(second[0]["step"], 2)
        self.assertEqual([one["top"] for one in second], [one["top"] for one in first], "the same place")
        gang.commit(3)
        self.kill(second[0])
        self.assertEqual(gang.started(3)[0]["step"], 3)
        gang.finish()
        self.assertEqual(self.steps(gang.job)[-1], 5)

    def test_a_spare_finds_what_the_member_on_the_lost_node_has_saved(self) -> None:
        gang = Writers(self, steps=3, gang="spares=1", nodes=3, tasks=6)
        first = gang.started(1)
        gang.commit(1, 2)
        self.cluster.kill("n2")
        self.addCleanup(self.revive, "n2")
        second = gang.started(2)
        self.assertEqual({one["host"] for one in second}, {"n1", "n3"})
        self.assertEqual(second[0]["step"], 2)
        gang.finish(2 * SOON)
        self.assertEqual(len(first), 4)

    def revive(self, node: str) -> None:
        """What a node that lost its power has left is taken away by the next watcher of this user there."""
        self.cluster.revive(node)
        state = ["sinfo", "-h", "-N", "-n", node, "-o", "%t"]
        self.wait(lambda: self.cluster.exec("ctl", state).stdout.split() == ["idle"], f"{node} to be idle", 2 * SOON)
        job = self.shell("true", options=("-w", node))
        self.assertEqual(job.wait(), 0, job.err)

    def test_a_directory_that_was_torn_by_a_kill_is_never_restored(self) -> None:
        for torn in (2, 3):  # by renaming, by a mark
            with self.subTest(step=torn):
                gang = Writers(self, steps=torn + 1)  # it does not end by itself
                gang.started(1)
                gang.commit(*range(1, torn))
                (gang.job.files / f"torn.{torn}").touch()
                gang.allow(torn)
                self.assertEqual(gang.started(2)[0]["step"], torn - 1)
                self.assertEqual(len(self.events(gang.job, "fault")), 1)
                gang.finish()

    def test_a_program_in_a_container_has_it_too(self) -> None:
        gang = Writers(self, steps=3, env={"MUSTER_TEST_NAMESPACE": "1"})
        first = gang.started(1)
        gang.commit(1, 2)
        self.kill(first[1])
        self.assertEqual(gang.started(2)[0]["step"], 2)
        gang.finish()


    def test_a_smaller_gang_finds_what_its_ranks_have_saved(self) -> None:
        gang = Writers(self, steps=4, gang="min=1", nodes=2, tasks=4)
        first = gang.started(1)
        gang.commit(1)
        lost = first[3]["host"]
        self.cluster.kill(lost)
        self.addCleanup(self.revive, lost)
        gang.ranks = 2
        self.assertEqual(gang.started(2)[0]["step"], 1)
        gang.commit(2)
        gang.finish(2 * SOON)

    def test_a_damaged_checkpoint_is_not_laid_out_the_one_before_is(self) -> None:
        gang = Writers(self, steps=4)
        first = gang.started(1)
        gang.commit(1, 2)
        rados = Rados(self.cluster, "trainer")
        rados.flip(next(name for name in rados.list(f"data/{gang.job.key}/2.") if rank_and_chunk(name) == (3, 0)))
        self.kill(first[0])
        self.assertEqual(gang.started(3)[0]["step"], 1)
        self.assertEqual(len(self.events(gang.job, "checkpoint_bad")), 1)
        gang.finish()

    def test_the_example_goes_on_after_a_kill_and_comes_to_the_same_end(self) -> None:
        steps = 40
        words = ["sbatch", "--wait", "-N2", "--ntasks-per-node=2", "--output={FILES}/out", "--error={FILES}/err"]
        env = {"STEPS": str(steps), "SECONDS_A_STEP": "0.3"}
        job = self.start_job([*words, f"{SOURCE_IN_NODE}/examples/checkpoint_files.sh"], env=env)
        said = ["events", job.gang]
        self.wait(lambda: "is committed" in self.muster(*said).stdout, "a checkpoint")
        killed = self.cluster.exec("n2", ["pkill", "-9", "-o", "-f", "^[a-z/]*bash -c member"])
        self.assertEqual(killed.returncode, 0)
        self.assertEqual(job.wait(), 0, job.err)
        self.assertIn("goes on after step", job.out)
        for rank in range(4):
            state = ""
            for step in range(1, steps + 1):
                state = hashlib.sha256(f"{state} {rank} {step}".encode()).hexdigest() + "  -"
            self.assertIn(f"rank {rank}: done, {state}", job.out)


class Saves(FilesCase):
    def test_steps_that_are_written_quickly_are_all_checkpoints(self) -> None:
        gang = Writers(self, steps=6)
        gang.started(1)
        (gang.job.files / "hurry").touch()
        gang.finish()
        self.assertEqual(sorted(int(t.split()[1]) for t in self.event_texts(gang.job, "checkpoint")), [1, 2, 3, 4, 5, 6])

    def test_what_a_program_closes_last_is_a_checkpoint_before_the_gang_ends(self) -> None:
        script = "cd $MUSTER_CHECKPOINT_DIR; mkdir step-7.tmp; head -c 30000000 /dev/urandom >step-7.tmp/data; mv step-7.tmp step-7"
        job = self.shell(script, nodes=2, tasks=4)
        self.assertEqual(job.wait(), 0, job.err)
        self.assertEqual(self.steps(job), [7])

    def test_what_cannot_be_a_checkpoint_is_said_and_the_program_goes_on(self) -> None:
        script = """
cd $MUSTER_CHECKPOINT_DIR
bad() {
    until [ -s failed.$1 ]; do sleep 0.05; done
    cat failed.$1
}
mkdir a && ln -s /etc/passwd a/link && mv a step-1 && bad step-1
mkdir -p b/c && mkfifo b/c/pipe && mv b step-2 && bad step-2
mkdir c && touch "c/$(printf 'x\\ny')" && mv c step-3 && bad step-3
touch step-4 && bad step-4
mkdir -p $(printf 'd/%.0s' {1..40}) && mv d step-5 && bad step-5
mkdir e && mkdir -p e/$(printf 'n%.0s' {1..200}) && touch e/$(printf 'n%.0s' {1..200})/$(printf 'm%.0s' {1..200}) && mv e step-6 && bad step-6
mkdir f && echo good >f/file && mv f step-10
until [ -e committed.step-10 ]; do sleep 0.05; done
mkdir g && mv g step-9 && bad step-9
ls -d step-*/ | wc -l
"""
        job = self.shell(script)
        self.assertEqual(job.wait(), 0, job.err)
        said = job.out.splitlines()
        self.assertEqual(said[0], "link is a symbolic link; only files and directories can be in a checkpoint")
        self.assertEqual(said[1], "c/pipe is a pipe; only files and directories can be in a checkpoint")
        self.assertEqual(said[2], "a name with a control character in it cannot be in a checkpoint")
        self.assertEqual(said[3], "it is not a directory")
        self.assertIn("more than 32 directories deep", said[4])
        self.assertIn("has more than 255 bytes", said[5])
        self.assertEqual(said[6], "step 9 is below step 10, which this handle has saved")
        self.assertEqual(said[7].strip(), "7", "what is not committed is never removed")
        self.assertIn("muster: rank 0: step-1 is not a checkpoint: link is a symbolic link", job.err)
        self.assertEqual(self.steps(job), [10])

    def test_what_is_too_large_is_said_and_the_program_goes_on(self) -> None:
        script = """
cd $MUSTER_CHECKPOINT_DIR
mkdir a && truncate -s 65M a/data && mv a step-1
until [ -s failed.step-1 ]; do sleep 0.05; done
cat failed.step-1
mkdir b && head -c 1M /dev/urandom >b/data && mv b step-2
until [ -e committed.step-2 ]; do sleep 0.05; done
"""
        job = self.shell(script)
        self.assertEqual(job.wait(), 0, job.err)
        self.assertIn("is above musterd's limit of 67108864 bytes", job.out)
        self.assertEqual(self.steps(job), [2])

    def test_a_musterd_that_is_killed_while_a_step_is_saved_loses_nothing(self) -> None:
        script = """
cd $MUSTER_CHECKPOINT_DIR
mkdir a && head -c 30M /dev/urandom >a/data && mv a step-1 && touch $FILES/closed.$RANK
"""
        job = self.shell(script, nodes=2, tasks=4)
        job.wait_for_file("closed.3")
        self.cluster.restart_daemon("n1", "musterd")
        self.assertEqual(job.wait(), 0, job.err)
        self.assertEqual(self.steps(job), [1])
        self.assertEqual(self.status(job)["generation"], 1)

    def test_what_a_program_saves_when_slurm_ends_it_is_a_checkpoint(self) -> None:
        script = """
cd $MUSTER_CHECKPOINT_DIR
trap 'mkdir a && echo $RANK >a/rank && mv a step-5 && exit 0' TERM
touch $FILES/ready.$RANK
while :; do sleep 0.1; done
"""
        job = self.shell(script, nodes=2, tasks=2)
        job.wait_for_file("ready.0")
        job.wait_for_file("ready.1")
        self.cluster.exec("ctl", ["scancel", job.id])
        job.wait()
        self.assertEqual(self.steps(job), [5])

    def test_a_drain_is_seen_in_the_directory(self) -> None:
        script = """
cd $MUSTER_CHECKPOINT_DIR
touch $FILES/ready.$RANK.$MUSTER_GENERATION
until [ -e wanted ]; do sleep 0.05; [ ! -e $FILES/go ] || exit 0; done
mkdir a && mv a step-3
until [ -e committed.step-3 ]; do sleep 0.05; done
[ ! -e wanted ] || touch $FILES/still
while :; do sleep 0.1; done
"""
        job = self.shell(script, ",spares=1,grace=60s", nodes=3, tasks=3)
        job.wait_for_file("ready.1.1")
        self.addCleanup(lambda: self.cluster.exec("ctl", ["muster", "node", "resume", "n2"]))
        done = self.cluster.exec("ctl", ["muster", "node", "drain", "n2", "--reason", "test"])
        self.assertEqual(done.returncode, 0, done.stderr)
        job.wait_for_file("ready.0.2")
        job.wait_for_file("ready.1.2")
        self.assertFalse((job.files / "still").exists())
        self.assertEqual(self.steps(job), [3])
        job.release()
        self.assertEqual(job.wait(), 0, job.err)

    def test_committed_directories_are_removed_but_for_the_newest_two(self) -> None:
        script = """
cd $MUSTER_CHECKPOINT_DIR
for n in 1 2 3 4; do
    mkdir w && echo $n >w/n && mv w step-00$n
    until [ -e committed.step-00$n ]; do sleep 0.05; done
done
until [ ! -e step-002 ] && [ ! -e committed.step-002 ]; do sleep 0.05; done
ls
"""
        job = self.shell(script)
        self.assertEqual(job.wait(), 0, job.err)
        self.assertEqual(job.out.split(), ["committed.step-003", "committed.step-004", "step-003", "step-004"])

    def test_the_command_closes_a_step_and_says_how_it_went(self) -> None:
        script = """
cd $MUSTER_CHECKPOINT_DIR
mkdir step-1 step-2 && echo data >step-1/data && ln -s x step-2/link
muster checkpoint commit step-1 --wait 60; echo $?
muster checkpoint commit $PWD/step-2/ --wait 60 2>&1; echo $?
muster checkpoint commit step-3 2>&1; echo $?
muster checkpoint commit data 2>&1; echo $?
"""
        job = self.shell(script)
        self.assertEqual(job.wait(), 0, job.err)
        said = job.out.splitlines()
        self.assertEqual(said[:2], ["step-1 is a checkpoint", "0"])
        self.assertIn("step-2 is not a checkpoint: link is a symbolic link", said[2])
        self.assertEqual(said[3], "1")
        self.assertIn("cannot open step-3: No such file or directory", said[4])
        self.assertEqual((said[5], said[7]), ("2", "2"))
        self.assertIn("'data' is not the directory of a step", said[6])

    def test_a_step_that_has_failed_is_mended_and_closed_again(self) -> None:
        script = """
cd $MUSTER_CHECKPOINT_DIR
mkdir step-1 && echo data >step-1/data && ln -s x step-1/link
muster checkpoint commit step-1 --wait 60; echo $?
rm step-1/link
muster checkpoint commit step-1 --wait 60; echo $?
ls -d *step-1
mkdir step-2 && echo data >step-2/commit
muster checkpoint commit step-2 --wait 60 2>&1; echo $?
until [ -e failed.step-2 ]; do sleep 0.05; done
mv step-2 w && mv w step-2
until [ -e committed.step-2 ]; do sleep 0.05; done
ls -d *step-2
"""
        job = self.shell(script)
        self.assertEqual(job.wait(), 0, job.err)
        said = job.out.splitlines()
        self.assertIn("step-1 is not a checkpoint: link is a symbolic link", said[0])
        self.assertEqual(said[1:6], ["1", "step-1 is a checkpoint", "0", "committed.step-1", "step-1"])
        self.assertIn("step-2/commit is not the empty file that closes a step", said[6])
        self.assertEqual(said[7:], ["2", "committed.step-2", "step-2"])
        self.assertEqual(self.steps(job), [1, 2])

    def test_a_member_that_has_not_saved_a_step_keeps_it_from_being_one(self) -> None:
        script = """
cd $MUSTER_CHECKPOINT_DIR
if [ $RANK = 0 ]; then mkdir w && mv w step-1; fi
mkdir w && mv w step-2
until [ -e committed.step-2 ]; do sleep 0.05; done
"""
        job = self.shell(script, nodes=1, tasks=2)
        self.assertEqual(job.wait(), 0, job.err)
        self.assertEqual(self.steps(job), [2])
        self.assertIn("muster: rank 0: the program has ended, and not every member has saved step-1 yet", job.err)


class Program(FilesCase):
    def test_the_program_keeps_its_stdin_stdout_exit_code_and_processes(self) -> None:
        count = "grep -c . /proc/$$/task/$$/children; ls -l /proc/self/fd | grep -c muster"
        inner = f"cat; {count}; exit 7"
        words = f"printf 'one\\ntwo\\n' | srun -N1 -n1 --gang=files=yes,restarts=0 bash -c '{inner}'"
        job = self.start_job(["bash", "-c", words])
        self.assertEqual(job.wait(), 7, job.err)
        self.assertEqual(job.out.splitlines(), ["one", "two", "1", "0"])  # its only child is grep
        self.assertNotIn("muster-files", job.err)

    def test_it_is_told_of_its_directory_and_of_nothing_else(self) -> None:
        job = self.shell("env | grep -E '^MUSTER_(FILES|CHECK)'; stat -c '%a %U' $MUSTER_CHECKPOINT_DIR")
        self.assertEqual(job.wait(), 0, job.err)
        self.assertRegex(job.out, r"^MUSTER_CHECKPOINT_DIR=/tmp/muster-files-\d+@n\d@\d+\.0\.0-[0-9a-f]{16}\n700 trainer\n$")

    def test_the_directory_is_where_the_user_wants_it(self) -> None:
        job = self.shell("echo $MUSTER_CHECKPOINT_DIR", env={"MUSTER_FILES_DIR": "/dev/shm", "TMPDIR": "/tmp"})
        self.assertEqual(job.wait(), 0, job.err)
        self.assertTrue(job.out.startswith("/dev/shm/muster-files-"), job.out)
        job = self.shell("echo never", env={"MUSTER_FILES_DIR": "/does/not/exist"})
        self.assertNotEqual(job.wait(), 0)
        self.assertEqual(job.out, "")
        self.assertIn("cannot use /does/not/exist: No such file or directory (checkpoint directories are made below", job.err)

    def test_a_watcher_that_is_killed_is_missed_but_not_mourned(self) -> None:
        job = self.shell("pkill -9 -x -u $UID muster-files; sleep 1; echo goes on", gang=",join=60s")
        self.assertEqual(job.wait(), 0, job.err)
        self.assertEqual(job.out, "goes on\n")
        self.assertIn("muster: muster-files was killed", job.err)

    def test_without_files_there_is_no_watcher(self) -> None:
        job = self.srun(["bash", "-c", "echo ${MUSTER_CHECKPOINT_DIR-none}; pgrep -x muster-files; true"], "files=no", nodes=1, tasks=1)
        self.assertEqual(job.wait(), 0, job.err)
        self.assertEqual(job.out, "none\n")

    def test_a_checkpoint_that_was_not_saved_from_files_is_refused(self) -> None:
        save = "import muster; g = muster.init(); g.save({'a': 1}, 3); g.wait(3)"
        job = self.srun(["/usr/bin/python3", "-c", save], "name=mixed", nodes=1, tasks=1)
        self.assertEqual(job.wait(), 0, job.err)
        job = self.shell("echo never", gang=",name=mixed")
        self.assertNotEqual(job.wait(), 0)
        self.assertEqual(job.out, "")
        self.assertIn("the checkpoint of step 3 cannot be laid out in /tmp/muster-files-", job.err)
        self.assertIn("it was not saved from files (--gang=files=yes)", job.err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
