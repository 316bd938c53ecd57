#!/usr/bin/python3
"""`muster checkpoint ...` and `muster report storage` on Ceph: what they show, what they move, whom they refuse."""

import hashlib
import json
import os
import struct
import subprocess
import sys
import textwrap
import unittest
from pathlib import Path
from typing import Any

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402
from harness import PYTHON, SOURCE_IN_NODE, SOON, USERS, ClusterCase, Job  # noqa: E402
from pool import Rados, space_of  # noqa: E402
from standstill import arm, standing_still  # noqa: E402
from vc.names import CONTROLLER, REPOSITORY  # noqa: E402

MEMBERS = 2
CHUNK = 64 * 1024
PROGRAMS = f"{SOURCE_IN_NODE}/tests/cluster/programs"
Done = subprocess.CompletedProcess[str]


def setUpModule() -> None:
    settings = {"chunk_size": "64KiB", "keep_checkpoints": "3", "max_shard_size": "16MiB", "compression": "auto"}
    harness.start("ckpt", nodes=2, settings=settings)


def tensors(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Reads a safetensors file as the format's own description has it: the header, and the data by name."""
    data = path.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + size])
    body = data[8 + size :]
    metadata = header.pop("__metadata__", {})
    return metadata, {name: body[slice(*tensor["data_offsets"])] for name, tensor in header.items()}


def safetensors(named: dict[str, tuple[str, list[int], bytes]], metadata: dict[str, str] | None = None) -> bytes:
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    body = b""
    for name, (dtype, shape, data) in named.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


class CommandCase(ClusterCase):
    def home(self, user: str = "trainer") -> Path:
        return self.cluster.directory / "home" / user

    def put(self, name: str, data: bytes) -> str:
        """A file of the user's; gives its path on the nodes."""
        path = self.home() / name
        path.write_bytes(data)
        os.chown(path, USERS["trainer"], USERS["trainer"])
        self.addCleanup(path.unlink, missing_ok=True)
        return f"/home/trainer/{name}"

    def refused(self, code: int, *words: str, user: str = "trainer") -> str:
        """The sentence with which a command ends."""
        done = self.muster("checkpoint", *words, user=user)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertEqual(done.stdout, "")
        return done.stderr

    def stateful(self, mode: str, *words: str, gang: str) -> Job:
        program = ["/usr/bin/python3", f"{PROGRAMS}/stateful.py", "{FILES}", mode, *words]
        job = self.srun(program, gang, nodes=2, tasks=MEMBERS, env={"OMP_NUM_THREADS": "1"})
        self.assertEqual(job.wait(SOON * 2), 0, job.err)
        return job

    def kept(self, steps: int, gang: str = "") -> Job:
        """A gang of programs/keeper.py that has made so many steps, and is over."""
        program = [*PYTHON, f"{PROGRAMS}/keeper.py", "{FILES}", str(steps)]
        job = self.srun(program, gang, nodes=2, tasks=MEMBERS)
        for step in range(1, steps + 1):
            (job.files / f"step.{step}").touch()
        self.assertEqual(job.wait(), 0, job.err)
        return job

    def objects(self, prefix: str) -> list[str]:
        words = ["timeout", "30", "rados", "-p", "muster", "-N", space_of(self.cluster, "trainer"), "ls"]
        done = self.cluster.exec("ctl", words)
        self.assertEqual(done.returncode, 0, done.stderr)
        return sorted(name for name in done.stdout.splitlines() if name.startswith(prefix))

    def steps(self, of: str) -> list[int]:
        return [item["step"] for item in self.muster_json("checkpoint", "list", of)["checkpoints"]]


class Compression(CommandCase):
    """`compression: auto`, which all the others here have too."""

    def read(self, key: str) -> "subprocess.CompletedProcess[str]":
        return self.cluster.exec("ctl", [f"{PROGRAMS}/read_checkpoint.py", "muster", space_of(self.cluster, "trainer"), key], timeout=SOON)

    def test_a_compressed_checkpoint_takes_less_and_is_the_same(self) -> None:
        self.stateful("save", "40", gang="name=small")
        found = self.muster_json("checkpoint", "show", "name=small")
        self.assertLess(found["stored_bytes"], 0.9 * found["bytes"])
        self.assertEqual(found["stored_bytes"], sum(shard["stored_bytes"] for shard in found["shards"]))
        self.assertEqual(found["own_bytes"], found["bytes"], "of plain bytes")
        rados = Rados(self.cluster, "trainer")
        chunks = [name for name in rados.list("data/name-small/40.") if not name.endswith("/manifest")]
        objects = {name: len(rados.get(name)) for name in chunks}
        self.assertEqual(sum(objects.values()), found["stored_bytes"])
        report = self.muster_json("report", "storage")["users"][0]
        (key,) = (key for key in report["keys"] if key["key"] == "name-small")
        self.assertEqual((key["bytes"], key["stored_bytes"]), (found["bytes"], found["stored_bytes"]))

        # Whoever reads it finds what was saved: a program, an export, one who knows docs/formats.md alone.
        self.stateful("check", gang="name=small")
        self.muster_json("checkpoint", "export", "name=small", "--to", "/home/trainer/small")
        done = self.read("name-small")
        self.assertEqual(done.returncode, 0, done.stderr)
        for rank, entries in enumerate(json.loads(done.stdout)["ranks"]):
            metadata, named = tensors(self.home() / "small" / f"rank{rank:05}.safetensors")
            for name, _, tensor in json.loads(metadata["muster"])["entries"]:
                if tensor is not None:
                    self.assertEqual(entries[name]["sha256"], hashlib.sha256(named[tensor]).hexdigest(), tensor)

        # And damage to it is found.
        compressed = min(objects, key=lambda name: (objects[name] < 10_000, objects[name]))
        self.assertLess(objects[compressed], CHUNK)
        rados.flip(compressed)
        (bad,) = self.muster_json("checkpoint", "verify", "name=small", code=1)["checkpoints"]
        self.assertIn(compressed, bad["reason"])
        self.assertIn(f"object {compressed} does not verify", self.read("name-small").stderr)


class Show(CommandCase):
    def test_what_a_checkpoint_consists_of(self) -> None:
        job = self.stateful("save", "12", gang="name=shown")
        found = self.muster_json("checkpoint", "show", job.gang)
        self.assertEqual((found["step"], found["members"], found["key"], found["state"]), (12, MEMBERS, "name-shown", "good"))
        self.assertTrue(found["latest"])
        self.assertEqual(len(found["shards"]), MEMBERS)
        self.assertEqual(found["bytes"], sum(shard["bytes"] for shard in found["shards"]))
        shard = found["shards"][1]
        self.assertEqual(shard["chunks"], -(-shard["bytes"] // CHUNK))
        self.assertEqual(found["own_bytes"], found["bytes"], "it is the first one")
        entries = {entry["name"]: (entry["dtype"], entry["shape"], entry["bytes"]) for entry in shard["entries"]}
        self.assertEqual(entries["model.layers.0.weight"], ("F32", [300, 70], 84000))
        self.assertEqual(entries["floats.bfloat16"], ("BF16", [3, 5], 30))
        self.assertEqual(entries["plain.raw"], ("U8", [66], 66))
        self.assertEqual(self.muster_json("checkpoint", "show", "name=shown", "--step", "12"), found)
        one = self.muster_json("checkpoint", "show", "name=shown", "--rank", "1")
        self.assertEqual(["entries" in shard for shard in one["shards"]], [False, True])
        text = self.muster("checkpoint", "show", job.gang).stdout
        self.assertRegex(text, r"model\.layers\.0\.weight +F32 +\[300,70\] +84\.0 kB\n")

    def test_what_is_not_there_is_said(self) -> None:
        job = self.kept(1)
        self.assertIn("has no checkpoint of step 9", self.refused(1, "show", job.gang, "--step", "9"))
        self.assertIn("has no rank 2", self.refused(2, "show", job.gang, "--rank", "2"))
        self.assertIn("no gang of job 999999", self.refused(1, "show", "999999"))
        self.assertIn("name=nobody has no checkpoints", self.refused(1, "list", "name=nobody"))
        self.assertIn("is not a job", self.refused(2, "show", "name=../x"))
        self.assertIn("is not a job", self.refused(2, "show", "twelve"))
        self.assertIn("'-1' is not a number", self.refused(2, "show", job.gang, "--step", "-1"))

    def test_another_user_sees_nothing_and_root_all(self) -> None:
        job = self.kept(1, "name=private")
        self.assertIn("no gang of job", self.refused(1, "show", job.gang, user="other"))
        self.assertIn("has no checkpoints", self.refused(1, "list", "name=private", user="other"))
        uid = str(USERS["trainer"])
        for words in (["show", job.gang], ["verify", job.gang], ["export", job.gang, "--to", "/tmp/x"]):
            self.assertIn("only root", self.refused(2, *words, "--uid", uid, user="other"))
        for words in (["show", "name=private"], ["verify", "name=private"]):
            done = self.muster("checkpoint", *words, "--uid", uid, "--json", user="root")
            self.assertEqual(done.returncode, 0, done.stderr)


class Verify(CommandCase):
    def test_good_and_damaged(self) -> None:
        job = self.kept(3)
        found = self.muster_json("checkpoint", "verify", job.gang)["checkpoints"]
        self.assertEqual([(entry["step"], entry["verified"]) for entry in found], [(1, True), (2, True), (3, True)])
        chunk = self.objects(f"data/{job.key}/2.")[0]
        words = ["rados", "-p", "muster", "-N", space_of(self.cluster, "trainer"), "truncate", chunk, "10"]
        self.assertEqual(self.cluster.exec("ctl", words).returncode, 0)
        found = self.muster_json("checkpoint", "verify", job.gang, code=1)["checkpoints"]
        self.assertEqual([entry["verified"] for entry in found], [True, False, True])
        self.assertIn("is cut off", found[1]["reason"])
        self.muster_json("checkpoint", "verify", job.gang, "--step", "3")
        self.assertIn("has no checkpoint of step 7", self.refused(1, "verify", job.gang, "--step", "7"))
        self.assertIn("is cut off", self.refused(1, "export", job.gang, "--step", "2", "--to", "/home/trainer/torn"))
        self.assertEqual(list((self.home() / "torn").iterdir()), [])
        (self.home() / "torn").rmdir()
        self.assertIn("is cut off", self.muster("checkpoint", "show", job.gang, "--step", "2").stdout)

    def test_what_is_removed_meanwhile_is_not_bad(self) -> None:
        job = self.kept(3)
        point = "engine.chunk_read"
        arm(self, CONTROLLER, point)
        words = ["muster", "checkpoint", "verify", job.gang, "--json"]
        command = self.cluster.user_popen(CONTROLLER, words, stdout=subprocess.PIPE, text=True)
        self.addCleanup(command.kill)
        with standing_still(self, CONTROLLER, point):
            for step in ("1", "2"):
                done = self.muster("checkpoint", "delete", job.gang, "--step", step, node="n1")
                self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads(command.communicate(timeout=SOON)[0])
        self.assertEqual(command.returncode, 0, found)
        # Of step 1 everything may have been read before; of step 2 nothing.
        self.assertEqual([entry["step"] for entry in found["checkpoints"] if entry["step"] > 1], [3])
        self.assertTrue(all(entry["verified"] for entry in found["checkpoints"]), found)
        self.assertIn("no checkpoint 2", found["removed"][-1]["reason"])
        # What is asked for by its step is not there then, as if it had never been.
        self.assertIn("has no checkpoint of step 2", self.refused(1, "verify", job.gang, "--step", "2"))

    def test_an_export_of_what_is_removed_meanwhile_says_so(self) -> None:
        job = self.kept(3)
        point = "engine.chunk_read"
        arm(self, CONTROLLER, point)
        words = ["muster", "checkpoint", "export", job.gang, "--step", "1", "--to", "/home/trainer/late"]
        command = self.cluster.user_popen(CONTROLLER, words, stderr=subprocess.PIPE, text=True)
        self.addCleanup(command.kill)
        with standing_still(self, CONTROLLER, point):
            done = self.muster("checkpoint", "delete", job.gang, "--step", "1", node="n1")
            self.assertEqual(done.returncode, 0, done.stderr)
        said = command.communicate(timeout=SOON)[1]
        self.assertEqual(command.returncode, 1, said)
        self.assertIn("was removed while it was read", said)
        self.assertIn("muster checkpoint pin", said)
        self.assertEqual(list((self.home() / "late").iterdir()), [])

    def test_a_terminal_gets_a_bar(self) -> None:
        job = self.kept(1)
        files = "/home/trainer/bar"
        for bar, words in (
            (r"verify step 1  \[\.+\]  0 %  0 B of 4\d\d\.\d kB", f"verify {job.gang}"),
            (r"export  \[\.+\]  0 %  0 B of 4\d\d\.\d kB", f"export {job.gang} --to {files}"),
            (r"import  \[\.+\]  0 %  0 B of \d\d\d\.\d kB", f"import --name bar --step 1 {files}/*.safetensors"),
        ):
            done = self.cluster.user(
                CONTROLLER, ["script", "-qec", f"muster checkpoint {words}", "/dev/null"], user="trainer", timeout=SOON
            )
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertRegex(done.stdout, bar)
        self.assertNotIn("\r", self.muster("checkpoint", "verify", job.gang).stderr)


class Move(CommandCase):
    """Export, and import into another name."""

    def test_a_job_starts_bit_for_bit_from_what_another_has_saved(self) -> None:
        job = self.stateful("save", "30", gang="name=origin")
        done = self.muster_json("checkpoint", "export", job.gang, "--to", "/home/trainer/moved")
        directory = self.home() / "moved"
        files = ["rank00000.safetensors", "rank00001.safetensors"]
        self.assertEqual(sorted(path.name for path in directory.iterdir()), ["index.json", *files])
        self.assertEqual([file["bytes"] for file in done["files"]], [(directory / name).stat().st_size for name in files])
        index = json.loads((directory / "index.json").read_text())
        self.assertEqual((index["step"], index["members"], index["key"]), (30, MEMBERS, "name-origin"))
        metadata, named = tensors(directory / files[0])
        self.assertEqual(metadata["format"], "pt")
        self.assertEqual((named["a.b"], named["a.b~2"]), (b"first", b"second"))
        self.assertEqual(len(named["model.layers.0.weight"]), 84000)

        again = self.refused(2, "export", job.gang, "--to", "/home/trainer/moved")
        self.assertIn("is there already", again)
        # In any order: each file says which rank it is.
        paths = [f"/home/trainer/moved/{name}" for name in reversed(files)]
        done = self.muster_json("checkpoint", "import", "--name", "copy", "--step", "31", *paths)
        self.assertEqual((done["step"], done["members"], done["key"]), (31, MEMBERS, "name-copy"))
        self.muster_json("checkpoint", "verify", "name=copy")
        restored = self.stateful("check", gang="name=copy")
        self.assertEqual([(restored.files / f"check.{rank}").read_text() for rank in range(MEMBERS)], ["31\n"] * MEMBERS)

        # A shard is the same to the last byte, so its chunks have the same digests.
        self.muster_json("checkpoint", "export", "name=copy", "--to", "/home/trainer/moved2")
        for name in files:
            self.assertEqual(tensors(directory / name)[1], tensors(self.home() / "moved2" / name)[1])

        self.assertIn("step 31 already", self.refused(2, "import", "--name", "copy", "--step", "31", *paths))
        self.assertIn("newer checkpoint, of step 31", self.refused(2, "import", "--name", "copy", "--step", "5", *paths))
        self.assertIn("rank 0 is missing", self.refused(2, "import", "--name", "few", "--step", "1", paths[0]))
        self.assertIn("rank 1 is missing", self.refused(2, "import", "--name", "few", "--step", "1", paths[1]))
        twice = self.refused(2, "import", "--name", "few", "--step", "1", paths[1], paths[1])
        self.assertIn("rank 0 is there twice", twice)
        self.assertEqual(self.objects("data/name-few/"), [])

    def test_plain_entries_of_a_c_program_come_back_too(self) -> None:
        words = ["muster-train", "--text", "/usr/share/common-licenses/GPL-3", "--width", "16", "--depth", "1"]
        words += ["--context", "16", "--batch", "2", "--checkpoint-every", "5", "--log-every", "5"]
        words += ["--steps", "20", "--params-out", "{FILES}/params"]
        plain = self.srun(words, nodes=2, tasks=MEMBERS)
        self.assertEqual(plain.wait(), 0, plain.err)
        self.muster_json("checkpoint", "export", plain.gang, "--step", "10", "--to", "/home/trainer/plain")
        metadata, named = tensors(self.home() / "plain" / "rank00001.safetensors")
        self.assertIsNone(json.loads(metadata["muster"])["structure"])
        self.assertGreater(sum(map(len, named.values())), 1000)
        paths = [f"/home/trainer/plain/rank0000{rank}.safetensors" for rank in range(MEMBERS)]
        self.muster_json("checkpoint", "import", "--name", "second", "--step", "10", *paths)
        rest = self.srun(words, "name=second", nodes=2, tasks=MEMBERS)
        self.assertEqual(rest.wait(), 0, rest.err)
        self.assertIn("resumed from step 10", rest.out)
        self.assertEqual((rest.files / "params").read_bytes(), (plain.files / "params").read_bytes())

    def test_a_file_of_another_program_becomes_a_dict_of_its_tensors(self) -> None:
        data = struct.pack("<4f", 1.5, -2.0, 0.25, 3.0)
        path = self.put("foreign.safetensors", safetensors({"w": ("F32", [2, 2], data), "n": ("I64", [], b"\7" + bytes(7))}))
        self.muster_json("checkpoint", "import", "--name", "foreign", "--step", "0", path)
        code = """
        import torch
        state, step = gang.restore(replicated=True)
        assert step == 0 and list(state) == ["w", "n"], (step, state)
        assert state["w"].tolist() == [[1.5, -2.0], [0.25, 3.0]] and state["w"].dtype == torch.float32
        assert state["n"].item() == 7 and state["n"].dtype == torch.int64
        """
        program = "import muster\ngang = muster.init()\n" + "\n".join(line.strip() for line in code.splitlines())
        job = self.srun(["/usr/bin/python3", "-c", program], "name=foreign", nodes=2, tasks=MEMBERS)
        self.assertEqual(job.wait(SOON * 2), 0, job.err)

    def test_bad_files_are_refused_and_leave_nothing(self) -> None:
        good = safetensors({"w": ("U8", [4], b"1234")})
        bad = {
            "short": (good[:5], "shorter than 8 bytes"),
            "cut": (good[:30], "is cut off"),
            "tail": (good + b"x", "belong to no tensor"),
            "dtype": (safetensors({"w": ("Q7", [4], b"1234")}), "has the dtype"),
            "shape": (safetensors({"w": ("U8", [5], b"1234")}), "its shape and dtype need 5"),
            "json": (struct.pack("<Q", 4) + b"{xx}", "is not JSON"),
            "ours": (safetensors({"w": ("U8", [4], b"1234")}, {"muster": "{}"}), "its Muster metadata"),
            "large": (safetensors({"w": ("U8", [17 << 20], bytes(17 << 20))}), "max_shard_size"),
        }
        for name, (data, sentence) in bad.items():
            with self.subTest(name):
                path = self.put(f"{name}.safetensors", data)
                said = self.refused(2, "import", "--name", "bad", "--step", "1", path)
                self.assertIn(sentence, said)
                self.assertIn(path, said)
        path = self.put("good.safetensors", good)
        self.assertIn("no regular file", self.refused(2, "import", "--name", "bad", "--step", "1", "/home/trainer"))
        self.assertIn("cannot read", self.refused(2, "import", "--name", "bad", "--step", "1", "/nowhere"))
        self.assertIn("is no name", self.refused(2, "import", "--name", "a/b", "--step", "1", path))
        self.refused(2, "import", "--name", "bad", path)
        self.refused(2, "import", "--name", "bad", "--step", "1")
        self.assertIn("has no checkpoints", self.refused(1, "list", "name=bad"))
        self.assertEqual(self.objects("data/name-bad/"), [])

    def test_a_gang_that_runs_keeps_its_name(self) -> None:
        program = [*PYTHON, f"{PROGRAMS}/keeper.py", "{FILES}", "2"]
        job = self.srun(program, "name=taken", nodes=2, tasks=MEMBERS)
        (job.files / "step.1").touch()
        self.wait(lambda: (job.files / "committed.1.1").exists(), "the first checkpoint")
        path = self.put("taken.safetensors", safetensors({"w": ("U8", [4], b"1234")}))
        said = self.refused(1, "import", "--name", "taken", "--step", "9", path)
        self.assertIn(f"gang {job.gang} uses name=taken", said)
        (job.files / "step.2").touch()
        self.assertEqual(job.wait(), 0, job.err)
        self.assertEqual(self.steps("name=taken"), [1, 2])
        self.assertEqual(self.status(job)["generation"], 1)
        # After its end the name may be used, and its job is still found.
        self.muster_json("checkpoint", "import", "--name", "taken", "--step", "9", path)
        self.assertEqual(self.steps(job.gang), [1, 2, 9])

    def test_a_run_comes_from_a_laptop(self) -> None:
        """Saved without Muster, on no node: a gang goes on from it, also one of another size."""
        code = """
            import sys, numpy, muster
            whole = numpy.arange(6.0, dtype="f4").reshape(3, 2)
            own = {"rank": muster.in_gang(), "t": (1, float("nan")), "w": whole + int(sys.argv[2])}
            with muster.testing.local_gang(sys.argv[1], rank=int(sys.argv[2]), world_size=2) as gang:
                first, last = (0, 2) if gang.rank == 0 else (2, 3)
                gang.save(own, 5, slices={"part": muster.Slice(whole[first:last], whole.shape, (first, 0))})
        """
        program = "import muster.testing\n" + textwrap.dedent(code)
        place = self.home() / "laptop"
        for rank in range(MEMBERS):
            environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "client/python")}
            subprocess.run(["/usr/bin/python3", "-B", "-c", program, place, str(rank)], env=environment, check=True)
        files = sorted(str(path).replace(str(self.home()), "/home/trainer") for path in place.glob("step-5/*"))
        self.muster_json("checkpoint", "import", "--name", "laptop", "--step", "5", *files)
        look = """
            import numpy, muster
            gang = muster.init()
            into = numpy.zeros((3, 2), "f4")
            gang.restore_slices({"part": muster.Slice(into)})
            state, step = gang.restore(replicated=True)
            print(gang.rank, step, state["rank"], state["t"], state["w"].sum(), into.tolist(), flush=True)
        """
        said = "5 False (1, nan)", [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
        for tasks in (MEMBERS, 1):
            job = self.srun(["/usr/bin/python3", "-c", textwrap.dedent(look)], "name=laptop", nodes=tasks, tasks=tasks)
            self.assertEqual(job.wait(), 0, job.err)
            expected = [f"{rank} {said[0]} {15.0 + 6 * rank} {said[1]}" for rank in range(tasks)]
            self.assertEqual(sorted(job.out.splitlines()), expected)

    def test_an_import_that_is_given_up_leaves_nothing(self) -> None:
        path = self.put("given-up.safetensors", safetensors({"w": ("U8", [8 << 20], bytes(8 << 20))}))
        for point in ("engine.chunk_written", "engine.chunk_written:100", "engine.shard_written"):
            with self.subTest(point):
                arm(self, CONTROLLER, point)
                words = ["muster", "checkpoint", "import", "--name", "given-up", "--step", "1", path]
                command = self.cluster.user_popen(CONTROLLER, words)
                self.addCleanup(command.wait)
                self.addCleanup(command.kill)
                with standing_still(self, CONTROLLER, point):
                    self.assertNotEqual(self.objects("data/name-given-up/"), [])
                    command.kill()
                    command.wait()
                self.wait(lambda: self.objects("data/name-given-up/") == [], "what was written to be removed")
                self.assertEqual(self.steps("name=given-up"), [])


class Keep(CommandCase):
    """Pins, deletion and retention."""

    def change(self, *words: str) -> list[int]:
        removed: list[int] = self.muster_json("checkpoint", *words)["removed"]
        return removed

    def test_pinned_checkpoints_survive_and_are_found_by_their_name(self) -> None:
        program = [*PYTHON, f"{PROGRAMS}/keeper.py", "{FILES}", "8"]
        job = self.srun(program, "name=pins", nodes=2, tasks=MEMBERS)

        def make(step: int) -> None:
            (job.files / f"step.{step}").touch()
            self.wait(lambda: (job.files / f"committed.{step}.0").exists(), f"step {step}")

        make(1)
        pinned = self.muster_json("checkpoint", "pin", job.gang, "--step", "1", "--name", "before")
        self.assertEqual((pinned["step"], pinned["pinned"]), (1, "before"))
        for step in range(2, 8):
            make(step)
        self.assertEqual(self.steps(job.gang), [1, 5, 6, 7])
        listed = self.muster_json("checkpoint", "list", "name=pins")["checkpoints"]
        self.assertEqual([entry["pinned"] for entry in listed], ["before", "", "", ""])
        self.assertIn("good, pinned as before", self.muster("checkpoint", "list", "name=pins").stdout)
        for words in (["show"], ["verify"], ["export", "--to", "/home/trainer/pinned"]):
            found = self.muster_json("checkpoint", words[0], "name=pins", "--name", "before", *words[1:])
            self.assertEqual(found.get("step", 1), 1)

        # The gang runs: it may need the newest two.
        for step in ("6", "7"):
            self.assertIn("newest two good ones", self.refused(1, "delete", job.gang, "--step", step))
        self.assertEqual(self.change("delete", job.gang, "--step", "5"), [5])
        self.assertEqual(self.change("prune", job.gang, "--keep", "1"), [])
        self.assertEqual(self.steps(job.gang), [1, 6, 7])
        self.assertIn("is pinned as 'before'", self.refused(1, "delete", job.gang, "--step", "1"))
        self.assertIn("give another name", self.refused(1, "pin", job.gang, "--step", "6", "--name", "before"))
        self.muster_json("checkpoint", "verify", job.gang)
        make(8)
        self.assertEqual(job.wait(), 0, job.err)
        self.assertEqual(self.status(job)["generation"], 1)
        self.assertEqual(self.event_texts(job, "checkpoint_failed"), [])

        # It is over: nothing is needed any more, and objects go at once.
        self.assertEqual(self.change("prune", job.gang, "--keep", "1"), [6, 7])
        self.assertEqual(self.steps(job.gang), [1, 8])
        self.muster_json("checkpoint", "verify", job.gang)
        self.assertEqual(self.objects("data/name-pins/7."), [])
        self.assertEqual(self.change("delete", job.gang, "--step", "8"), [8])
        self.muster_json("checkpoint", "unpin", job.gang, "--name", "before")
        self.assertEqual(self.change("delete", "name=pins", "--step", "1"), [1])
        self.assertEqual((self.steps("name=pins"), self.objects("data/name-pins/")), ([], []))
        self.assertIn("no good checkpoint", self.refused(1, "show", job.gang))

    def test_pruning_removes_what_unfinished_saves_have_left_of_a_gang_that_is_over(self) -> None:
        path = self.put("left.safetensors", safetensors({"w": ("U8", [4], b"1234")}))
        self.muster_json("checkpoint", "import", "--name", "left", "--step", "1", path)
        whole = self.objects("data/name-left/")
        for chunk in (0, 1):
            Rados(self.cluster, "trainer").put(f"data/name-left/9.1.0/0.{chunk}", b"torn")
        pruned = self.muster_json("checkpoint", "prune", "name=left")
        self.assertEqual((pruned["removed"], pruned["orphans"]), ([], 2))
        self.assertEqual(self.objects("data/name-left/"), whole)
        self.muster_json("checkpoint", "verify", "name=left")
        self.assertEqual(self.muster("checkpoint", "prune", "name=left").stdout, "nothing is removed\n")

    def restart_musterd(self, **env: str) -> None:
        self.cluster.stop_daemon(CONTROLLER, "musterd")
        self.cluster.start_daemon(CONTROLLER, "musterd", env=env)

    def test_musterd_dies_while_it_prunes_at_somebodys_word(self) -> None:
        path = self.put("dies.safetensors", safetensors({"w": ("U8", [4], b"1234")}))

        def bring(step: int) -> None:
            self.muster_json("checkpoint", "import", "--name", "dies", "--step", str(step), path)

        bring(1)
        self.addCleanup(self.restart_musterd)
        for step, point in ((2, "catalog.dropped"), (3, "catalog.object_removed")):
            bring(step)
            self.restart_musterd(MUSTER_CRASH_AT=point)
            self.refused(3, "prune", "name=dies", "--keep", "1")
            self.wait(lambda: self.cluster.daemon_pid(CONTROLLER, "musterd") is None, "musterd's end")
            self.restart_musterd()
            self.assertEqual(self.steps("name=dies"), [step])
            self.muster_json("checkpoint", "verify", "name=dies")
            self.assertGreater(self.muster_json("checkpoint", "prune", "name=dies", "--keep", "1")["orphans"], 0)
            self.assertTrue(all(name.startswith(f"data/name-dies/{step}.") for name in self.objects("data/name-dies/")))
            self.muster_json("checkpoint", "verify", "name=dies")

    def test_bad_input(self) -> None:
        job = self.kept(1)
        one = ["--step", "1"]
        self.assertIn("no checkpoint of step 9", self.refused(1, "delete", job.gang, "--step", "9"))
        self.assertIn("no checkpoint of step 9", self.refused(1, "pin", job.gang, "--step", "9", "--name", "x"))
        self.assertIn("no checkpoint pinned as 'x'", self.refused(1, "unpin", job.gang, "--name", "x"))
        self.assertIn("no checkpoint pinned as 'x'", self.refused(1, "delete", job.gang, "--name", "x"))
        self.assertIn("is no name", self.refused(2, "pin", job.gang, *one, "--name", "../x"))
        self.assertIn("is no name", self.refused(2, "pin", job.gang, *one, "--name", "x" * 64))
        for words in (["pin", job.gang, *one], ["pin", job.gang, "--name", "x"], ["delete", job.gang], ["unpin", job.gang]):
            self.refused(2, *words)
        for keep in ("0", "-1", "x"):
            self.refused(2, "prune", job.gang, "--keep", keep)
        self.refused(2, "delete", job.gang, *one, "--name", "x")
        for words in (["pin", job.gang, *one, "--name", "x"], ["delete", job.gang, *one], ["prune", job.gang]):
            self.assertIn("no gang of job", self.refused(1, *words, user="other"))
            self.assertIn("only root", self.refused(2, *words, "--uid", str(USERS["trainer"]), user="other"))
        self.assertEqual(self.steps(job.gang), [1])


class Storage(CommandCase):
    def test_what_users_have_stored(self) -> None:
        self.kept(2, "name=counted")
        found = self.muster_json("report", "storage")
        self.assertEqual([user["uid"] for user in found["users"]], [USERS["trainer"]])
        user = found["users"][0]
        keys = {key["key"]: key for key in user["keys"]}
        self.assertEqual((keys["name-counted"]["checkpoints"], keys["name-counted"]["latest"]), (2, 2))
        listed = self.muster_json("checkpoint", "list", "name=counted")["checkpoints"]
        self.assertEqual(keys["name-counted"]["bytes"], sum(item["bytes"] for item in listed))
        self.assertEqual(user["bytes"], sum(key["bytes"] for key in user["keys"]))
        self.assertLessEqual(user["stored_bytes"], user["bytes"])
        self.assertEqual(keys["name-counted"]["unreadable"], [])
        other = self.muster_json("report", "storage", user="other")["users"]
        self.assertEqual([(one["uid"], one["checkpoints"]) for one in other], [(USERS["other"], 0)])
        self.assertIn("only root", self.muster("report", "storage", "--all", user="trainer").stderr)
        self.assertIn("only root", self.muster("report", "storage", "--uid", "0", user="trainer").stderr)
        everyone = json.loads(self.muster("report", "storage", "--all", "--json", user="root").stdout)["users"]
        self.assertIn((user["uid"], user["bytes"]), [(one["uid"], one["bytes"]) for one in everyone])
        table = self.muster("report", "storage").stdout
        self.assertRegex(table, r"name-counted +\S+ +2 +")


class Unreachable(CommandCase):
    def test_without_musterd_the_exit_code_says_so(self) -> None:
        job = self.kept(1)
        path = self.put("lonely.safetensors", safetensors({"w": ("U8", [4], b"1234")}))
        self.cluster.stop_daemon(CONTROLLER, "musterd")
        try:
            for words in (["list", job.gang], ["verify", job.gang], ["import", "--name", "x", "--step", "1", path]):
                self.assertIn("is musterd.service running?", self.refused(3, *words))
        finally:
            self.cluster.start_daemon(CONTROLLER, "musterd")


if __name__ == "__main__":
    unittest.main(verbosity=2)
