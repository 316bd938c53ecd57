#!/usr/bin/python3
"""The network of a gang: what members are told of the fabric, `muster net test` between its nodes, how members meet."""

import json
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
from harness import ClusterCase, Job  # noqa: E402
from vc.names import BUILD_IN_NODE  # noqa: E402

SHOW = ["sh", "-c", 'echo "$NCCL_SOCKET_IFNAME $NCCL_IB_TC"']


EXCHANGES = f'sys.path.insert(0, "{BUILD_IN_NODE}/python")' + """
import muster

gang = muster.init()

def exchanged(key):
    return [value.decode() for value in gang.exchange(key, f"{key} of {rank} in {generation}".encode(), timeout=60)]

def refusal(key, value):
    try:
        return gang.exchange(key, value, timeout=60)
    except muster.MusterError as error:
        return f"{type(error).__name__}: {error}"

said = {"one": exchanged("one")}
if generation == 1:
    record(**said)
    if rank == 2:
        until(lambda: False)
said |= {"two": exchanged("two"), "used": refusal("one", b"again"), "large": refusal("three", bytes(4097))}
record(**said)
"""
TRAIN = (
    '[ "$RANK" = 0 ] && echo "$MASTER_PORT" > "$FILES/port.$MUSTER_GENERATION"; '
    "exec muster-train --text /usr/share/common-licenses/GPL-3 --width 16 --depth 1 --context 16 --steps 1000000"
)


def setUpModule() -> None:
    harness.start("net", nodes=3, ceph=False)


class Net(ClusterCase):
    def describe_fabric(self) -> None:
        """The nodes' own network is the fabric."""
        address = self.cluster.exec("n1", ["hostname", "-i"]).stdout.split()[0]
        network = ".".join(address.split(".")[:3]) + ".0/24"
        settings = self.cluster.directory / "etc" / "muster" / "roce.yaml"
        settings.write_text(f"networks: {network}\nmtu: 1500\n")
        self.addCleanup(settings.unlink)
        for node in ("n1", "n2", "n3"):
            self.cluster.restart_daemon(node, "musterd")

    def test_members_are_told_of_the_fabric_and_keep_what_is_theirs(self) -> None:
        plain = self.srun(SHOW, nodes=3, tasks=3)
        self.assertEqual((plain.wait(), plain.out.split()), (0, []))
        self.describe_fabric()
        interfaces = json.loads(self.cluster.exec("n1", ["muster", "net", "env", "--json"]).stdout)["variables"]
        self.assertEqual([one["key"] for one in interfaces], ["NCCL_SOCKET_IFNAME"], "there is no RDMA here")
        told = interfaces[0]["value"]

        def members(*words: str) -> list[str]:
            job = self.srun([*words, *SHOW], nodes=3, tasks=3)
            self.assertEqual(job.wait(), 0, job.err)
            return [line.strip() for line in job.out.splitlines()]

        # A musterd that has just started may not have looked yet.
        self.wait(lambda: members() == [told] * 3, "members that are told")
        own = self.srun(SHOW, nodes=3, tasks=3, env={"NCCL_SOCKET_IFNAME": "=mine", "NCCL_IB_TC": "0"})
        self.assertEqual((own.wait(), own.out.splitlines()), (0, ["=mine 0"] * 3))
        [said] = [line for line in own.err.splitlines() if "is yours" in line]
        self.assertTrue(said.endswith(f"muster: NCCL_SOCKET_IFNAME==mine is yours, and stays; Muster's is {told} (muster net env)"), said)

    def test_the_nodes_of_a_gang_test_their_fabric(self) -> None:
        self.describe_fabric()
        job = self.srun(["muster", "net", "test", "--json"], "restarts=0", nodes=3, tasks=6)
        self.assertEqual(job.wait(), 0, job.err)
        verdict = json.loads(job.out)
        self.assertEqual((verdict["ok"], verdict["nodes"], verdict["findings"], verdict["missing"]), (True, 3, [], []))
        self.assertGreater(verdict["mbit_s"], 0)

    def test_members_exchange_values_anew_in_each_generation(self) -> None:
        def of_all(key: str, generation: int) -> list[str]:
            return [f"{key} of {rank} in {generation}" for rank in range(4)]

        job = self.gang(EXCHANGES)
        first = job.wait_for_generation(1, 4)
        self.assertEqual([record.said["one"] for record in first], [of_all("one", 1)] * 4)
        self.kill_member(first[2])  # the others wait for it in the next exchange
        self.assertEqual(job.wait(), 0, job.err)
        second = job.records(2)
        self.assertEqual(len(second), 4)
        for record in second:
            self.assertEqual((record.said["one"], record.said["two"]), (of_all("one", 2), of_all("two", 2)))
            self.assertRegex(record.said["used"], "the key one has been used in this generation")
            self.assertRegex(record.said["large"], "^TooLarge: a value of 4097 bytes; a member may give 4096")

    def test_muster_train_meets_through_musterd_in_each_generation(self) -> None:
        job = self.srun(["bash", "-c", TRAIN])
        self.wait_for_steps(job, 0)
        self.expect_no_master_port(job, 1)
        self.assertEqual(self.cluster.exec("n2", ["pkill", "-KILL", "-o", "muster-train"]).returncode, 0)
        self.wait(lambda: "generation 2 runs" in job.err, "the next generation")
        self.wait_for_steps(job, len(job.out))
        self.expect_no_master_port(job, 2)

    def wait_for_steps(self, job: Job, since: int) -> None:
        self.wait(lambda: " loss " in job.out[since:] or not job.running(), "a step that all have made")
        self.assertTrue(job.running(), job.err)

    def expect_no_master_port(self, job: Job, generation: int) -> None:
        port = job.wait_for_file(f"port.{generation}").strip()
        listening = ""
        for node in ("n1", "n2", "n3"):
            listening += self.cluster.exec(node, ["ss", "--listening", "--tcp", "--numeric", "--processes", "--no-header"]).stdout
        members = [line for line in listening.splitlines() if '"muster-train"' in line]
        self.assertEqual(len(members), 1, listening)  # where they say why they end
        self.assertNotRegex(listening, rf":{port}\s")

    def test_outside_of_a_gang_it_says_how_to_start_it(self) -> None:
        job = self.srun(["muster", "net", "test"], gang=None, nodes=1, tasks=1)
        self.assertEqual(job.wait(), 2)
        self.assertIn("srun --gang=restarts=0 -N4 --ntasks-per-node=1 muster net test", job.err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
