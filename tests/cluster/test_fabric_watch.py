#!/usr/bin/python3
"""A port of the fabric that loses its link under a gang is named: in events, metrics and causes, and then its node is replaced."""

import re
import signal
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
from harness import ClusterCase, Job  # noqa: E402

METRICS = "/run/muster/node.prom"
LOST = "fab0 lost its link: operstate "


def setUpModule() -> None:
    # Without checks of the node a link that is down makes no node sick.
    cluster = harness.start(
        "fabric", nodes=3, ceph=False, settings={"metrics_file": METRICS, "health_timeout": "0"}
    )
    (cluster.directory / "etc" / "muster" / "roce.yaml").write_text("networks: 10.77.0.0/16\n")
    for number, node in enumerate(cluster.compute_nodes, 1):
        commands = (
            "ip link add fab0 type veth peer name switch0",
            f"ip address add 10.77.0.{number}/16 dev fab0",
            "ip link set fab0 up",
            "ip link set switch0 up",
        )
        done = cluster.exec(node, ["sh", "-c", " && ".join(commands)])
        if done.returncode != 0:
            raise AssertionError(done.stderr)


class FabricWatch(ClusterCase):
    def setUp(self) -> None:
        for node in self.cluster.compute_nodes:
            self.link(node, "up")

    def link(self, node: str, state: str) -> None:
        """The other end of the cable."""
        done = self.cluster.exec(node, ["ip", "link", "set", "switch0", state])
        self.assertEqual(done.returncode, 0, done.stderr)

    def metrics(self, node: str) -> str:
        return self.cluster.exec(node, ["cat", METRICS]).stdout

    def watched(self, *nodes: str) -> None:
        """Waits until musterd has seen the links of these nodes up. It writes metrics every 15 s."""
        for node in nodes:
            up = 'muster_fabric_ports{state="up"} 1\n'
            self.wait(lambda node=node: up in self.metrics(node), f"{node}'s port to be watched")  # type: ignore[misc]

    def lost(self, job: Job, node: str) -> None:
        text = f"node {node}: {LOST}"
        self.wait(lambda: [t for t in self.event_texts(job, "fabric") if t.startswith(text)], f"an event: {text}")

    def test_1_a_link_that_is_lost_is_named_in_events_metrics_and_the_cause(self) -> None:
        job = self.gang("record(); until_released()", tasks=2)
        victim = job.wait_for_generation(1, 2)[1]
        self.assertEqual(victim.host, "n2")
        self.watched("n1", "n2")
        self.link("n2", "down")
        self.lost(job, "n2")
        self.wait(lambda: 'muster_fabric_ports{state="down"} 1\n' in self.metrics("n2"), "the metric")
        self.assertIn("muster_fabric_links_lost_total{} 1\n", self.metrics("n2"))
        self.kill_member(victim, signal.SIGABRT)
        job.wait_for_generation(2, 2)
        fault = self.event_texts(job, "fault")[0]
        self.assertRegex(fault, "^rank 1 on n2 .* was killed by SIGABRT; restart, not counted against the limit$")
        said = r"the kernel of its node said at the time:\n.*fab0 has no link: operstate (lowerlayer)?down"
        self.wait(lambda: re.search(said, job.err), "the job to be told")
        self.assertEqual(self.event_texts(job, "node_sick"), [])
        self.link("n2", "up")
        again = re.compile(r"node n2: fab0 has its link again after [0-9.]+ s")
        self.wait(lambda: any(again.fullmatch(t) for t in self.event_texts(job, "fabric")), "an event: the link is back")
        self.assertFalse([t for t in self.event_texts(job, "fabric") if "node n1" in t])
        job.release()
        self.assertEqual(job.wait(), 0)

    def test_2_a_link_that_stays_away_makes_the_node_sick_and_a_spare_takes_its_place(self) -> None:
        path = self.cluster.directory / "etc" / "muster" / "muster.yaml"
        path.write_text(path.read_text().replace("health_timeout: 0\n", ""))
        for node in self.cluster.compute_nodes:
            self.cluster.restart_daemon(node, "musterd")
        job = self.gang("record(); until_released()", "spares=1", nodes=3, tasks=3)
        self.assertEqual([r.host for r in job.wait_for_generation(1, 2)], ["n1", "n2"])
        self.watched("n2")
        self.hurts("n2")
        self.link("n2", "down")
        records = job.wait_for_generation(2, 2)
        self.assertEqual({r.host for r in records}, {"n1", "n3"})
        self.assertRegex(self.event_texts(job, "node_sick")[0], "node n2 is sick: fab0 has had no link for [0-9]+ s: operstate ")
        self.wait(lambda: re.match("(drng|drain)", self.node_states()["n2"]), "n2 to be drained")
        for node, healthy in (("n2", 0), ("n3", 1)):
            line = f"muster_node_healthy{{}} {healthy}\n"
            self.wait(lambda node=node, line=line: line in self.metrics(node), f"{node}'s metric {line}")  # type: ignore[misc]
        self.assertIn("muster: fab0 has had no link", self.node_states()["n2"])
        job.release()
        self.assertEqual(job.wait(), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
