"""What provisioning/try.sh tells: blank machines become a cluster by one playbook, a gang loses a node and finishes, a blank machine
takes the node's place, and the cluster gets one node more. test_site.py tells the middle of it on its own cluster."""

import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True
_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parent / "cluster"), str(_HERE.parent / "demo")]

import screen  # noqa: E402
import blank_site  # noqa: E402
from blank_site import GROUPS, NODES  # noqa: E402
from gang_job import ANSWER_S, USER, GangJob  # noqa: E402
from rack import ClusterError, Play, Rack  # noqa: E402

LOST = "n2"  # not the batch host, and not the spare, which is the last one
NEW = "n4"


class Story:
    """Each step says what it does and how long it takes, and raises ClusterError when something is not as it must be."""

    def __init__(self, rack: Rack, limits: dict[str, str]) -> None:
        self._rack = rack
        self._config = {"muster_config": blank_site.STORE | limits}

    def tell(self) -> None:
        screen.title("1. Blank machines, on this machine")
        screen.say(f"{', '.join(self._rack.hosts)}: containers that boot Debian, and have nothing but ssh and Python")
        self._rack.start(report=screen.say)
        self._rack.playbooks.prepare(GROUPS, blank_site.variables(self._rack) | self._config)

        screen.title("2. Make them a cluster: ansible-playbook muster.appliance.site")
        self._play("site")
        self._rack.wait_for_idle(NODES)
        self._run("ctl", "sinfo -N -o '%N %t'")
        self._play("validate")

        self.lose_and_replace_a_node()

        screen.title("5. One node more: ansible-playbook muster.appliance.add_node -e nodes=n4")
        self._rack.add(NEW)
        self._rack.playbooks.prepare(GROUPS | {"compute": [*NODES, NEW]}, blank_site.variables(self._rack) | self._config)
        self._play("add_node", "-e", f"nodes={NEW}")
        self._rack.wait_for_idle([NEW])
        self._run("login1", f"srun --nodelist={NEW} --gang hostname", user=USER)
        self._play("validate")

    def lose_and_replace_a_node(self) -> None:
        """On a cluster that runs, whose nodes are idle."""
        screen.title("3. A gang of two nodes and a spare loses a node")
        self._gang()

        screen.title(f"4. A node with blank disks takes its place: ansible-playbook muster.appliance.replace_node -e nodes={LOST}")
        self._rack.replace(LOST)
        self._play("replace_node", "-e", f"nodes={LOST}")
        self._rack.wait_for_idle(NODES)
        again = self._play("site")
        if any(again.changed.values()):
            raise ClusterError(f"a second run has changed something: {again.changed}\n{again.output}")
        screen.say("it has changed nothing", "green")

    def _play(self, name: str, *arguments: str) -> Play:
        play = blank_site.play(self._rack, name, *arguments)
        screen.say(f"{name}: {play.seconds:.1f} s, {sum(play.changed.values())} changes on {len(play.changed)} hosts")
        return play

    def _run(self, host: str, command: str, user: str | None = None) -> None:
        screen.say(f"on {host}: {command}")
        for line in self._rack.run(host, ["sh", "-c", command], user=user, check=True).stdout.splitlines():
            screen.quote(line)

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
