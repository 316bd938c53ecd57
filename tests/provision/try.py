"""The story of provisioning/try.sh, once the packages are built: a site that has Slurm gets Muster by one playbook, a gang loses a
node and finishes, and another playbook takes Muster away again."""

import argparse
import contextlib
import os
import signal
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True
_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parent / "cluster"), str(_HERE.parent / "demo")]

import screen  # noqa: E402
from etc import Tree, compare  # noqa: E402
from gang_job import ANSWER_S, GangJob  # noqa: E402
from rack import ClusterError, Options, Play, Rack  # noqa: E402

ROOT = _HERE.parents[1]
NODES = ["n1", "n2", "n3"]
LOST = "n2"  # not the batch host, and not the spare, which is the last one
# What muster_only.yml changes of what is there below /etc. Packages bring files of their own, but none of Slurm's.
CHANGED = {"ld.so.cache", "slurm/plugstack.conf"}


class Story:
    """Each step says what it does and how long it takes, and raises ClusterError when something is not as it must be."""

    def __init__(self, rack: Rack) -> None:
        self._rack = rack
        self._began = time.monotonic()
        self._before: dict[str, Tree] = {}
        self._daemons: dict[str, str] = {}

    def tell(self) -> None:
        screen.title("1. A site that has Slurm, on this machine")
        screen.say("a controller (ctl) and three nodes (n1 to n3): containers that boot Debian, with Slurm from its packages")
        self._rack.start(report=screen.say)
        self._rack.playbooks.prepare(
            {"controller": ["ctl"], "login": [], "compute": NODES},
            {
                "muster_apt_source": self._rack.mirror.source,
                "muster_compute_packages": ["muster", "python3-muster", "muster-train"],
                "muster_config": {"store": "dir:/srv/checkpoints"},
            },
        )
        self._before = self._etc()
        self._daemons = self._slurm_pids()

        screen.title("2. Add Muster: ansible-playbook muster.appliance.muster_only")
        self._play("muster_only")
        self._check_added()
        self._play("validate")

        screen.title("3. A gang of two nodes and a spare loses a node")
        self._gang()

        screen.title("4. The node is back; the same playbook again")
        self._rack.revive(LOST)
        self._rack.wait_for_idle(NODES)
        again = self._play("muster_only")
        if any(again.changed.values()):
            raise ClusterError(f"a second run has changed something: {again.changed}\n{again.output}")
        screen.say("it has changed nothing", "green")
        self._play("validate")

        screen.title("5. Take Muster away: ansible-playbook muster.appliance.uninstall")
        self._play("uninstall")
        self._check_removed()

    def _play(self, name: str) -> Play:
        play = self._rack.playbooks.play(name)
        if play.code != 0:
            raise ClusterError(f"the playbook {name} has failed ({play.code}):\n{play.output}")
        screen.say(f"{name}: {play.seconds:.1f} s, {sum(play.changed.values())} changes on {len(play.changed)} hosts")
        return play

    def _check_added(self) -> None:
        for name, tree in self._etc().items():
            found = compare(self._before[name], tree)
            others = {path: what for path, what in found.items() if what != "added" or path.startswith("slurm/")}
            if strange := others.keys() - CHANGED:
                raise ClusterError(f"on {name} it has changed what is not Muster's below /etc: {', '.join(sorted(strange))}")
        if (pids := self._slurm_pids()) != self._daemons:
            raise ClusterError(f"a daemon of Slurm has been restarted: {self._daemons} before, {pids} now")
        screen.say("of Slurm's files plugstack.conf has changed; no daemon of Slurm was restarted", "green")

    def _gang(self) -> None:
        job = GangJob(self._rack, NODES)
        for line in job.script.splitlines():
            screen.quote(line)
        job.submit()
        screen.say(f"job {job.id}, submitted on ctl by an ordinary user")
        job.wait_for_checkpoint()
        step = job.step()
        killed = time.time()
        self._rack.kill(LOST)
        screen.say(f"NOW: {LOST} has lost its power, at about step {step}", "red")
        if not job.events(timeout=ANSWER_S):  # of the record: its coordinator was on that node
            raise ClusterError(f"`muster events` has no answer\n{job.evidence()}")
        job.wait_for_restart()
        screen.say(f"it trains again on n1 and n3, from the checkpoint of step {job.resumed_from()}", "green")
        job.wait_for_end()
        for line in job.muster_lines():
            screen.quote(line)
        if complaint := job.complaint():
            raise ClusterError(f"{complaint}\n{job.evidence()}")
        screen.say(f"generation 2 ran {job.began(2) - killed:.1f} s after the loss, in the same job", "green")
        screen.say(f"job {job.id} is COMPLETED: {job.last_line()}", "green")

    def _check_removed(self) -> None:
        for name, tree in self._etc().items():
            if found := compare(self._before[name], tree):
                raise ClusterError(f"/etc of {name} is not what it was: {found}")
        left = self._rack.run("n1", ["sh", "-c", "command -v muster musterd; ls /srv/checkpoints"], check=False)
        if "muster" in left.stdout.split("\n")[0] or not left.stdout.strip():
            raise ClusterError(f"left on n1: {left.stdout}")
        done = self._rack.run("ctl", ["srun", "-N3", "hostname"], user="trainer")
        if sorted(done.stdout.split()) != NODES or done.stderr:
            raise ClusterError(f"`srun -N3 hostname` says: {done.stdout}{done.stderr}")
        screen.say("/etc of every host is what it was, to the byte; srun works as before; the checkpoints are still there", "green")

    def _etc(self) -> dict[str, Tree]:
        return {name: Tree.of(self._rack.root(name) / "etc") for name in self._rack.hosts}

    def _slurm_pids(self) -> dict[str, str]:
        units = {name: "slurmctld" if name == "ctl" else "slurmd" for name in self._rack.hosts}
        show = ["systemctl", "show", "--value", "--property=MainPID"]
        return {name: self._rack.run(name, [*show, unit], check=True).stdout.strip() for name, unit in units.items()}


def _explain_keep(rack: Rack) -> None:
    rackctl = os.path.relpath(_HERE / "rackctl")
    name = rack.names.name
    screen.title("The rack is still up")
    screen.say(f"a shell on a machine: {rackctl} exec --name {name} ctl")
    screen.say(f"logs:                 {rack.directory / 'log'}")
    screen.say(f"remove it:            {rackctl} stop --name {name}")


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt(number)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--suite", default=Options().suite)
    parser.add_argument("--packages", type=Path, required=True)
    arguments = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    began = time.monotonic()
    options = Options(suite=arguments.suite, nodes=len(NODES), debs=str(arguments.packages.resolve()))
    rack = Rack(f"try-{os.getpid()}", options)
    logs: Path | None = Path(os.environ.get("MUSTER_TEST_LOGS", ROOT / "build" / "try-logs")) / rack.names.name
    try:
        Story(rack).tell()
        screen.title(f"All of it was true, in {time.monotonic() - began:.0f} s")
        logs = None
        return 0
    except ClusterError as error:
        screen.say(f"It failed: {error}", "red")
        return 1
    except KeyboardInterrupt as interrupt:
        logs = None
        arguments.keep = False
        with contextlib.suppress(BrokenPipeError):
            screen.say("interrupted: the rack is being removed")
        return 128 + (interrupt.args[0] if interrupt.args else signal.SIGINT)
    finally:
        if arguments.keep and rack.directory.exists():
            _explain_keep(rack)
        else:
            rack.stop(keep_logs=logs)
            if logs is not None and logs.exists():
                screen.say(f"the rack's logs: {logs}")


if __name__ == "__main__":
    sys.exit(main())
