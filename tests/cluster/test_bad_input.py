#!/usr/bin/python3
"""What is malformed, forged or hostile is refused with a reason, and musterd goes on serving."""

import json
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
from harness import PYTHON, ClusterCase, Job  # noqa: E402
from vc.names import BUILD_IN_NODE, SOURCE_IN_NODE  # noqa: E402

PACKETS = f'import sys; sys.path.insert(0, "{SOURCE_IN_NODE}/tests/cluster/programs"); from packets import *; from passing import let_in\n'
GANG_KEYS = ("restarts=N", "join=DURATION", "spares=N", "min=N", "grow=yes|no", "hang=DURATION|off", "startup=DURATION", "grace=DURATION",
             "last_words=DURATION[:SIGNAL]", "stop_codes=CODE[:CODE...] (1..255)", "requeue=yes|no", "role=NAME", "kind=tracked|", "after=ROLE[:done]", "name=KEY[:wait]", "files=yes|no", "order=slurm|topology", "preflight=off|quick|full", "warm=yes|no", "or off alone")  # fmt: skip


def setUpModule() -> None:
    harness.start("badinput", nodes=2, ceph=False)


class BadInput(ClusterCase):
    def setUp(self) -> None:
        self._daemons = {node: self.cluster.daemon_pid(node, "musterd") for node in self.cluster.compute_nodes}

    def still_serves(self) -> None:
        """No daemon has died, and a gang on both nodes runs to its end."""
        for node, pid in self._daemons.items():
            self.assertIsNotNone(pid)
            self.assertEqual(self.cluster.daemon_pid(node, "musterd"), pid, f"musterd of {node} has died")
        job = self.gang("record()", tasks=2)
        self.assertEqual(job.wait(), 0, job.err)

    def python(self, code: str, user: str = "trainer", env: dict[str, str] | None = None) -> str:
        """Runs a few lines on n1 as a user, with programs/packets.py at hand; what they print."""
        done = self.cluster.user("n1", [*PYTHON, "-c", PACKETS + code], user=user, env=env, timeout=90)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip()


class Options(BadInput):
    def test_a_malformed_gang_option_is_refused_at_submit_with_the_good_keys(self) -> None:
        bad = ["spare=1", "restarts=-1", "restarts=many", "join=0", "name=../../etc", "name=..", "name=a:w", "role=a/b", "restarts",
               "restarts=1,,join=5s", "restarts=1,restarts=2", "spares=1025", "min=-1", "hang=0", "startup=0", "startup=1m,hang=off", "grace=2h", "last_words=5:KILL", "stop_codes=0", "stop_codes=93:", "stop_codes=93:256", "grow=yes",
               "grow=maybe", "order=tree", "preflight=yes", "kind=boss", "after=:done", "role=ps,after=ps", "off,spares=1", "spares=1,off", "off=yes", "x" * 2000]  # fmt: skip
        script = self.cluster.directory / "home" / "trainer" / "job.sh"
        script.write_text("#!/bin/bash\ntrue\n")
        commands = {"sbatch": ["job.sh"], "srun": ["true"], "salloc": ["true"]}
        for option in bad:
            for command, rest in commands.items():
                with self.subTest(command=command, option=option[:40]):
                    done = self.cluster.user("ctl", [command, f"--gang={option}", *rest], timeout=30)
                    self.assertNotEqual(done.returncode, 0)
                    self.assertIn("--gang", done.stderr)
                    if len(option) < 1000 and option != "restarts=1,restarts=2":
                        for key in GANG_KEYS:
                            self.assertIn(key, done.stderr)
        self.assertEqual(self.cluster.exec("ctl", ["squeue", "-h"]).stdout, "")
        self.still_serves()

    def test_nodes_that_do_not_add_up_are_refused_at_submit(self) -> None:
        cases = {
            ("spares=2", "2"): "spares=2 of 2 nodes",
            ("spares=1", "1-1"): "spares=1 of 1 nodes",
            ("min=3", "2"): "min=3 is more than the 2 nodes",
            ("spares=1,min=2", "1-2"): "min=2 is more than the 1 nodes",
        }
        for (option, nodes), what in cases.items():
            for command in (["sbatch", "--wrap", "true"], ["srun", "true"], ["salloc", "true"]):
                with self.subTest(command=command[0], option=option):
                    words = [command[0], f"--nodes={nodes}", f"--gang={option}", *command[1:]]
                    done = self.cluster.user("ctl", words, timeout=30)
                    self.assertNotEqual(done.returncode, 0)
                    self.assertIn(what, done.stderr)
        script = "#!/bin/bash\n#SBATCH --gang=spares=2\n#SBATCH -N2\ntrue\n"
        done = self.cluster.user("ctl", ["sbatch"], input=script, timeout=30)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("spares=2 of 2 nodes", done.stderr)
        jobs = self.cluster.exec("ctl", ["squeue", "-h", "-o", "%T %j"]).stdout.splitlines()
        self.assertEqual([job for job in jobs if not job.startswith("COMPLETING")], [])

    def test_a_bad_configuration_is_refused_with_file_and_line(self) -> None:
        cases = {
            "store: dir:/x\nstoor: dir:/y\n": (2, "unknown key 'stoor'"),
            "\n\nkeep_checkpoints: 0\n": (3, "1 to 1000000"),
            "port: seventy\n": (1, "1 to 65535"),
            "reconnect: 5\n": (1, "ms, s, m or h"),
            "chunk_size: 1TiB\n": (1, "64MiB"),
            "port: [1, 2]\n": (1, "one value"),
            "port: 1\nport: 2\n": (2, "twice"),
            "store: {\n": (None, ""),
            "- a list\n": (1, "key: value"),
            "store: nfs:/x\n": (None, "rados:POOL or dir:/PATH"),
        }
        for text, (line, what) in cases.items():
            with self.subTest(text=text):
                path = self.cluster.directory / "home" / "trainer" / "bad.yaml"
                path.write_text(text)
                argv = ["musterd", "--check-config", "--config", "/home/trainer/bad.yaml"]
                done = self.cluster.exec("n1", argv, timeout=30)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn("bad.yaml:" if line is None else f"bad.yaml:{line}:", done.stderr)
                self.assertIn(what, done.stderr)
        missing = self.cluster.exec("n1", ["musterd", "--config", "/nowhere.yaml"], timeout=30)
        self.assertEqual(missing.returncode, 2)
        self.assertIn("/nowhere.yaml", missing.stderr)


class LocalSocket(BadInput):
    def test_what_is_not_a_message_is_refused(self) -> None:
        said = self.python(
            """
for data in (b"x", b"y" * 16, b"z" * 60000, packet(CLIENT_HELLO, size=999), packet(CLIENT_HELLO),
             packet(CLIENT_HELLO, bytes(24) + b"\\xff" * 8), packet(SUPERVISOR_HELLO, bytes(50)),
             packet(7), packet(60000), packet(SAVE, bytes(16)), packet(STEP_PAGE, bytes(8)),
             supervisor_hello(1, "n1", "n1", lengths=[0xffffffff, 0xffffffff, 2])):
    print(answer_to(data))
"""
        ).splitlines()
        self.assertEqual(len(said), 12)
        for line in said:
            self.assertRegex(line, r"^(malformed|denied): .{10,}[^)]$")
        self.still_serves()

    def test_another_protocol_version_is_named(self) -> None:
        said = self.python("print(answer_to(packet(CLIENT_HELLO, version=2))); print(answer_to(packet(1, version=0)))")
        self.assertEqual(len(said.splitlines()), 2)
        for line in said.splitlines():
            self.assertRegex(line, r"^version: .*version 1")
        self.still_serves()

    def test_an_oversized_message_is_refused(self) -> None:
        said = self.python("print(answer_to(packet(CLIENT_HELLO, bytes(100000)))); print(answer_to(packet(1, bytes(65521))))")
        for line in said.splitlines():
            self.assertRegex(line, "^malformed: .*64 KiB")
        self.still_serves()

    def test_only_slurmstepd_starts_supervisors(self) -> None:
        said = self.python(
            """
print(answer_to(supervisor_hello(77, "n1", "n1", uid=os.getuid())))
print(answer_to(supervisor_hello(77, "n1", "n1", uid=os.getuid(), reconnecting=1)))
"""
        ).splitlines()
        self.assertIn("denied: only slurmstepd may start a supervisor", said[0])
        self.assertRegex(said[1], "^(no gang|denied): ")
        self.still_serves()

    def test_many_idle_connections_of_a_user_do_not_keep_others_out(self) -> None:
        code = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
held = [connect() for _ in range(3000)]
with open(sys.argv[1] + "/held", "w") as file: file.write(str(len(held)))
import time
while not os.path.exists(sys.argv[1] + "/go"): time.sleep(0.02)
"""
        job = self.start_job(["true"])
        directory = job.files_in_node
        hog = self.cluster.popen("n1", ["prlimit", "--nofile=4096", *PYTHON, "-c", PACKETS + code, directory], "trainer")
        self.addCleanup(hog.wait, 30)
        self.addCleanup(job.release)
        self.wait(lambda: (job.files / "held").exists() or hog.poll() is not None, "the connections")
        other = self.gang("record()", tasks=2, user="other")
        self.assertEqual(other.wait(), 0, other.err)
        job.release()
        self.assertEqual(hog.wait(60), 0)
        self.still_serves()


class Members(BadInput):
    """What comes from a member's own program, or from one that poses as it."""

    def members_env(self, job: Job, generation: int, rank: int = 0) -> dict[str, str]:
        record = next(r for r in job.wait_for_generation(generation, 2) if r.rank == rank)
        return {key: record.env[key] for key in ("MUSTER_GANG", "MUSTER_TOKEN", "MUSTER_GENERATION", "RANK", "WORLD_SIZE")}

    def open_with_library(self, env: dict[str, str], user: str) -> str:
        code = f"""
sys.path.insert(0, "{BUILD_IN_NODE}/python")
import muster
try:
    muster.init()
    print("let in")
except Exception as error:
    print(error)
"""
        return self.python(code, user=user, env=env)

    def test_another_users_gang_is_refused(self) -> None:
        job = self.gang("record(); until_released()", tasks=2)
        stolen = self.members_env(job, 1)
        self.assertIn("belongs to another user", self.open_with_library(stolen, "other"))
        hello = "print(answer_to(client_hello(os.environ['MUSTER_GANG'], os.environ['MUSTER_TOKEN'], 1, 0)))"
        self.assertRegex(self.python(hello, "other", stolen), "^denied: .*another user")
        wrong = stolen | {"MUSTER_TOKEN": "0" * 32}
        self.assertRegex(self.python(hello, "trainer", wrong), "^denied: .*token")
        elsewhere = stolen | {"MUSTER_GANG": "99999.0"}
        self.assertRegex(self.python(hello, "trainer", elsewhere), "^no gang: ")
        job.release()
        self.assertEqual(job.wait(), 0)
        answer = self.muster("status", job.gang, user="other")
        self.assertEqual(answer.returncode, 1)
        self.assertIn("no gang of job", answer.stderr)
        self.assertEqual(self.muster("--uid", "20001", "status", user="other").returncode, 2)

    def test_a_process_of_an_older_generation_is_refused(self) -> None:
        job = self.gang("record(); until_released()", tasks=2)
        old = self.members_env(job, 1)
        self.kill_member(job.records(1)[1])
        job.wait_for_generation(2, 2)
        self.assertRegex(self.open_with_library(old, "trainer"), "generation 1 .*is over")
        job.release()
        self.assertEqual(job.wait(), 0)

    def test_memory_that_is_not_what_a_save_needs_is_refused(self) -> None:
        job = self.gang(
            PACKETS
            + """
import fcntl
def memory(size, seal=True):
    fd = os.memfd_create("shard", os.MFD_ALLOW_SEALING)
    os.truncate(fd, size)
    if seal: fcntl.fcntl(fd, 1033, 2)  # F_ADD_SEALS, F_SEAL_SHRINK
    return fd
peer = member()
said = {}
said["unsealed"] = saved(peer, 1, 4096, [memory(4096, False)])
said["small"] = saved(peer, 2, 1 << 30, [memory(4096)])
said["empty"] = saved(peer, 5, 0, [memory(4096)])
said["huge"] = saved(peer, 6, 1 << 62, [memory(4096)])
said["no step"] = saved(peer, (1 << 64) - 1, 4096, [memory(4096)])
step = 7 + 10 * int(os.environ["RANK"])  # which is never committed
said["good"] = saved(peer, step, 4096, [memory(4096)])
said["once more"] = saved(peer, step, 4096, [memory(4096)])
said["newer"] = saved(peer, step + 1, 4096, [memory(4096)])
said["again"] = saved(peer, step, 4096, [memory(4096)])
malformed = {}
null = os.open("/dev/null", os.O_RDWR)
passwd = os.open("/etc/passwd", os.O_RDONLY)
for case, fds in {"none": [], "null": [null], "file": [passwd], "two": [memory(4096), memory(4096)]}.items():
    send(peer, packet(SAVE, struct.pack("=QQ", step + 2, 4096)), fds)
    malformed[case] = refusal(peer)
    peer = let_in()
record(**said, malformed=malformed)
""",
            tasks=2,
        )
        self.assertEqual(job.wait(), 0, job.err)
        for record in job.records(1):
            said = record.said
            self.assertEqual([said.pop(case) for case in ("good", "once more", "newer")], ["0"] * 3)
            self.assertRegex(said.pop("again"), "^-4 .*saved in this generation already")
            for case, text in said.pop("malformed").items():
                self.assertRegex(text, "^malformed: [^(]*$", case)
            self.assertRegex(said.pop("empty"), "^-7 ")
            self.assertRegex(said.pop("huge"), "^-7 .*max_shard_size")
            for case, text in said.items():
                self.assertRegex(text, r"^-4 .{10,}", case)
        self.still_serves()

    def test_names_that_lead_elsewhere_are_only_names(self) -> None:
        job = self.gang(
            f"""
sys.path.insert(0, "{BUILD_IN_NODE}/python")
import ctypes, muster
lib = ctypes.CDLL("{BUILD_IN_NODE}/lib/libmuster.so.0")
handle = ctypes.c_void_p()
lib.muster_last_error.restype = ctypes.c_char_p
lib.muster_last_error.argtypes = [ctypes.c_void_p]
assert lib.muster_open(ctypes.byref(handle)) == 0
said = {{}}
assert lib.muster_save_begin(handle, ctypes.c_uint64(1), ctypes.c_size_t(0)) == 0
for name in (b"", b"a\\nb", b"x" * 300, b"../../../etc/passwd"):
    code = lib.muster_save_add(handle, name, None, b"data", ctypes.c_size_t(4))
    said[name.decode()[:20]] = [code, lib.muster_last_error(handle).decode()]
assert lib.muster_save_commit(handle) == 0
assert lib.muster_wait(handle, ctypes.c_uint64(1), 60000) == 0
record(**said)
""",
            gang="name=model.v1",
            tasks=2,
        )
        self.assertEqual(job.wait(), 0, job.err)
        said = job.records(1)[0].said
        self.assertEqual(said.pop("../../../etc/passwd"[:20])[0], 0, "an entry's name is no path anywhere")
        for name, (code, text) in said.items():
            self.assertEqual(code, -4, name)
            self.assertGreater(len(text), 10)
        store = self.cluster.exec("n1", ["find", "/var/lib/muster", "-name", "*passwd*"])
        self.assertEqual(store.stdout, "")


# gRPC by hand: HTTP/2 with literal headers. A call is "answered" when a message comes back, "refused" when it ends
# without one, "open" when neither happens.
CALLS = """
import hashlib, hmac, subprocess
def munge(payload):
    return subprocess.run(["munge", "-s", payload], capture_output=True, text=True, check=True).stdout.strip()
def varint(value):
    out = b""
    while value > 127: out += bytes([value & 127 | 128]); value >>= 7
    return out + bytes([value])
def text(value): return (bytes([len(value)]) if len(value) < 127 else b"\\x7f" + varint(len(value) - 127)) + value
def field(name, value): return b"\\x00" + text(name.encode()) + text(value.encode())
def frame(kind, flags, body): return len(body).to_bytes(3, "big") + bytes([kind, flags]) + (1 if kind < 4 else 0).to_bytes(4, "big") + body
def call(method, message, extra=(), patience=20):
    headers = b"".join(field(n, v) for n, v in ((":method", "POST"), (":scheme", "http"), (":path", "/muster.v1." + method),
        (":authority", "n2"), ("te", "trailers"), ("content-type", "application/grpc"), *extra))
    with dial() as peer:
        peer.settimeout(patience)
        try:
            peer.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + frame(4, 0, b"") + frame(1, 4, headers)
                         + frame(0, 0, b"\\x00" + len(message).to_bytes(4, "big") + message))
            data = b""
            while True:
                got = peer.recv(65536)
                if not got: return "refused"
                data += got
                while len(data) >= 9 and len(data) >= 9 + int.from_bytes(data[:3], "big"):
                    size, kind, flags = int.from_bytes(data[:3], "big"), data[3], data[4]
                    if kind == 0: return "answered"
                    if kind == 1 and flags & 1 or kind in (3, 7): return "refused"
                    data = data[9 + size:]
        except TimeoutError: return "open"
        except ConnectionError: return "refused"
def ask(question, credential): return call("Query/Ask", question, [("muster-credential", credential)])
"""


class Network(BadInput):
    """The port that daemons and the command share."""

    def raw(self, code: str, user: str = "trainer") -> str:
        lines = "import socket\ndef dial():\n    s = socket.create_connection(('n2', 303), 20); s.settimeout(20); return s\n"
        return self.python(lines + code, user)

    def test_garbage_and_half_open_connections_leave_the_daemon_serving(self) -> None:
        self.raw(
            """
held = [dial() for _ in range(100)]
for i, peer in enumerate(held):
    try:
        peer.sendall(os.urandom(1 + i * 50) if i % 3 else b"GET / HTTP/1.1\\r\\n\\r\\n")
    except OSError: pass
for peer in held[::2]: peer.close()
"""
        )
        self.still_serves()

    def test_a_call_without_a_credential_is_ended(self) -> None:
        # HTTP/2 by hand: preface, SETTINGS, HEADERS (literals without indexing), one message without a credential.
        said = self.raw(
            """
def field(name, value): return b"\\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value
def frame(kind, flags, stream, body): return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body
for method, message in ((b"Attend", b"\\x08\\x00\\x12\\x03abc"), (b"Attend", b"\\xff" * 50), (b"Ask", b"")):
    service = b"Query" if method == b"Ask" else b"Node"
    headers = b"".join(field(n, v) for n, v in ((b":method", b"POST"), (b":scheme", b"http"),
        (b":path", b"/muster.v1." + service + b"/" + method), (b":authority", b"n2"), (b"te", b"trailers"),
        (b"content-type", b"application/grpc")))
    peer = dial()
    peer.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + frame(4, 0, 0, b"") + frame(1, 4, 1, headers)
                 + frame(0, 0, 1, b"\\x00" + len(message).to_bytes(4, "big") + message))
    data, ended = b"", False
    while not ended:
        got = peer.recv(65536)
        if not got: break
        data += got
        while len(data) >= 9 and len(data) >= 9 + int.from_bytes(data[:3], "big"):
            size, kind, flags = int.from_bytes(data[:3], "big"), data[3], data[4]
            ended |= (kind == 1 and flags & 1 != 0) or kind == 3
            data = data[9 + size:]
    print("ended" if ended else "open")
"""
        )
        self.assertEqual(said.splitlines(), ["ended"] * 3)
        self.still_serves()

    def test_a_credential_that_is_replayed_foreign_or_for_something_else_is_refused(self) -> None:
        said = self.raw(
            CALLS
            + """
mine = b"\\x12\\x011"  # Question{gang: "1"}
root = b"\\x30\\x01"  # Question{has_uid: true}, of user 0
def query(node, question): return "muster-query-1\\n" + node + "\\n" + hashlib.sha256(question).hexdigest()
good = munge(query("n2", mine))
print("good:", ask(mine, good))
print("replayed:", ask(mine, good))
print("for another node:", ask(mine, munge(query("n1", mine))))
print("for another question:", ask(mine, munge(query("n2", b""))))
print("for another purpose:", ask(mine, munge("muster-node-1\\nn2\\n" + 32 * "k")))
print("not a credential:", ask(mine, "MUNGE:" + "A" * 200 + ":"))
print("empty:", ask(mine, ""))
print("huge:", ask(mine, "A" * 15000))
print("of another user:", ask(root, munge(query("n2", root))))
"""
        )
        told = dict(line.split(": ") for line in said.splitlines())
        # What another user's gangs are is answered by an error: test_another_users_gang_is_refused reads it.
        answered = {"good": "answered", "of another user": "answered"}
        self.assertEqual(told, dict.fromkeys(told, "refused") | answered)
        self.assertEqual(len(told), 9)
        # The first envelope of an agent, right in all but who has made its credential.
        attend = (
            CALLS
            + """
key = 32 * "k"
mac = hmac.new(key.encode(), bytes([1]) + bytes(8), "sha256").digest()
credential = munge("muster-node-1\\nn2\\n" + key).encode()
print(call("Node/Attend", b"\\x1a\\x20" + mac + b"\\x22" + varint(len(credential)) + credential, patience=3 if os.getuid() == 0 else 20))
"""
        )
        self.assertEqual(self.raw(attend, user="root"), "open", "this is how a daemon begins")
        self.assertEqual(self.raw(attend), "refused")
        self.still_serves()

    def test_without_munge_the_command_says_what_is_missing(self) -> None:
        answer = self.muster("status", "--json")
        self.assertEqual(answer.returncode, 0)
        self.assertIsInstance(json.loads(answer.stdout)["gangs"], list)
        self.cluster.stop_daemon("ctl", "munged")
        try:
            refused = self.muster("status")
            self.assertEqual(refused.returncode, 3)
            self.assertIn("MUNGE", refused.stderr)
        finally:
            self.cluster.start_daemon("ctl", "munged")
        self.still_serves()


if __name__ == "__main__":
    unittest.main()
