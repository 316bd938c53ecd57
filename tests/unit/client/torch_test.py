#!/usr/bin/env python3
"""muster.torch in one process, through the real libmuster against a musterd of the test's own.

The build's python folder must be in PYTHONPATH, and torch 2.4 or newer must be there. together_test.py has several ranks.
"""

import json
import os
import subprocess
import sys
import threading
import unittest
from collections import Counter, OrderedDict, defaultdict, namedtuple
from pathlib import Path
from typing import Any
from unittest import mock

import muster
import muster.torch
import numpy
import torch
from muster.torch import _dcp
from python_rig import MemberCase
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint import CheckpointException

Point = namedtuple("Point", "x y")


def state_of(rank: int) -> dict[str, Any]:
    return {
        "model": OrderedDict([("0.weight", torch.arange(12.0).reshape(3, 4)), ("0.bias", torch.ones(3))]),
        "optimizer": {"state": {0: {"step": 5, "exp_avg": torch.full((3, 4), 0.5)}}, "groups": [{"lr": 0.1, "betas": (0.9, 0.99)}]},
        "rank": rank,
        "array": numpy.arange(3),
        "bytes": b"\x00\xff",
        "none": None,
    }


class PlainTest(MemberCase):
    def check(self, got: Any, rank: int) -> None:
        expected = state_of(rank)
        self.assertEqual(list(got), list(expected))
        self.assertIs(type(got["model"]), OrderedDict)
        for name, tensor in expected["model"].items():
            self.assertTrue(torch.equal(got["model"][name], tensor), name)
        self.assertTrue(torch.equal(got["optimizer"]["state"][0]["exp_avg"], expected["optimizer"]["state"][0]["exp_avg"]))
        self.assertEqual(got["optimizer"]["state"][0]["step"], 5)
        self.assertEqual(got["optimizer"]["groups"], expected["optimizer"]["groups"])
        numpy.testing.assert_array_equal(got["array"], expected["array"])
        self.assertEqual((got["rank"], got["bytes"], got["none"]), (rank, b"\x00\xff", None))

    def test_each_member_gets_back_its_own(self) -> None:
        self.save_as_gang_of(2, lambda gang, step: muster.torch.save(gang, state_of(gang.rank), step))
        with muster.init() as gang:
            found = muster.torch.load(gang)
            assert found is not None
            self.assertEqual(found[1], 20)
            self.check(found[0], 1)

    def test_tensors_are_filled_where_they_are(self) -> None:
        self.save_as_gang_of(2, lambda gang, step: muster.torch.save(gang, state_of(gang.rank), step))
        into = {"model": {"0.weight": torch.zeros(4, 3).t(), "0.bias": torch.nn.Parameter(torch.zeros(3))}}
        with muster.init() as gang:
            found = muster.torch.load(gang, into)
            assert found is not None
            self.assertIs(found[0]["model"]["0.weight"], into["model"]["0.weight"])
            self.assertIs(found[0]["model"]["0.bias"], into["model"]["0.bias"])
            self.check(found[0], 1)

    def test_a_tensor_without_memory_is_not_filled_in_silence(self) -> None:
        self.save_as_gang_of(2, lambda gang, step: muster.torch.save(gang, state_of(gang.rank), step))
        into = {"model": {"0.weight": torch.zeros(3, 4, device="meta")}}
        with muster.init() as gang:
            with self.assertRaisesRegex(ValueError, "'/model/0.weight' cannot be restored into a tensor on the meta"):
                muster.torch.load(gang, into)
            with self.assertRaisesRegex(ValueError, "'/w' is a tensor on the meta device, which has no data"):
                muster.torch.save(gang, {"w": torch.zeros(1, device="meta")}, 1)

    def test_without_a_process_group_nobody_knows_what_all_have(self) -> None:
        with muster.init() as gang, self.assertRaisesRegex(ValueError, "replicated=True needs torch's process group"):
            muster.torch.save(gang, state_of(gang.rank), 1, replicated=True)

    def test_gang_restore_and_load_read_the_same(self) -> None:
        with muster.init() as gang:
            muster.torch.save(gang, state_of(gang.rank), 10)
            gang.save(state_of(gang.rank), 11)
            gang.wait(11, timeout=10)
            for step in (10, 11):
                for found in (gang.restore(step), muster.torch.load(gang, step=step)):
                    assert found is not None
                    self.check(found[0], 1)

    def test_a_type_of_a_newer_pytorch_is_named(self) -> None:
        def save(gang: muster.Gang, step: int) -> None:
            with mock.patch("muster.slices.dtype_of", return_value="float6_e1m4"):
                muster.torch.save(gang, {"w": torch.ones(2)}, step)

        self.save_as_gang_of(2, save)
        with muster.init() as gang, self.assertRaisesRegex(muster.MusterError, "'/w' is of type 'float6_e1m4'") as caught:
            muster.torch.load(gang)
        self.assertNotIsInstance(caught.exception, muster.Corrupt)

    def test_dicts_of_other_types_come_back_as_they_were(self) -> None:
        state = {"c": Counter({3: 2}), "d": defaultdict(list, {"w": [torch.ones(2)]}), "size": torch.Size([2, 3])}
        self.save_as_gang_of(2, lambda gang, step: muster.torch.save(gang, state, step))
        with muster.init() as gang:
            found = muster.torch.load(gang)
        assert found is not None
        self.assertEqual(repr(found[0]), repr(state | {"size": (2, 3)}))

    def test_what_cannot_be_saved_is_named(self) -> None:
        with muster.init() as gang:
            with self.assertRaisesRegex(TypeError, "'/p/0' is a Point, which cannot be saved: save its _asdict"):
                muster.torch.save(gang, {"p": [Point(torch.ones(1), 2)]}, 1)
            with self.assertRaisesRegex(TypeError, "'/a/0' is a sparse"):
                muster.torch.save(gang, {"a": [torch.eye(2).to_sparse()]}, 1)
            with self.assertRaisesRegex(TypeError, "'/b' is a set"):
                muster.torch.save(gang, {"b": {1}}, 1)
            with self.assertRaisesRegex(ValueError, "two leaves of the state are called '/a/1'"):
                muster.torch.save(gang, {"a": {1: torch.ones(1), "1": torch.ones(1)}}, 1)


class DcpTest(MemberCase):
    def setUp(self) -> None:
        super().setUp()
        os.environ["RANK"], self.musterd.world_size = "0", 1

    def save(self, state: dict[str, Any], step: int = 10, planner: Any = None) -> None:
        with muster.init() as gang:
            dcp.save(state, storage_writer=muster.torch.StorageWriter(gang, step), planner=planner)
            gang.wait(step, timeout=10)

    def load(self, state: dict[str, Any], step: int = 10, planner: Any = None) -> None:
        with muster.init() as gang:
            dcp.load(state, storage_reader=muster.torch.StorageReader(gang, step), planner=planner)

    def structure(self, step: int = 10) -> bytes:
        with muster.init() as gang:
            return gang._reading(step, None).leaf("bytes", "structure", 0)

    def test_a_state_goes_round(self) -> None:
        state = {
            "weight": torch.arange(12.0).reshape(3, 4),
            "half": torch.randn(5).to(torch.bfloat16),
            "eighth": torch.randn(5).to(torch.float8_e4m3fn),
            "number": torch.tensor(3),
            "empty": torch.empty(0, 4),
            "steps": 7,
            "names": {"a": [1, 2]},
            "a/b~c": torch.ones(1),
        }
        self.save(state)
        got = {name: torch.zeros_like(v) if isinstance(v, torch.Tensor) else None for name, v in state.items()}
        got["weight"], got["names"] = torch.zeros(4, 3).t(), {"a": [0, 0]}
        self.load(got)
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                self.assertTrue(torch.equal(got[name].float(), value.float()), name)
            else:
                self.assertEqual(got[name], value)

    def test_with_musters_planners_plain_values_are_not_pickled(self) -> None:
        values = {"epoch": 3, "lr": float("inf"), "bytes": b"\x00", "kind": torch.float16, "names": {"a": [1.5, None], "b": "x"}}
        plain = {"epoch": True, "lr": True, "bytes": False, "kind": False, "names.a": True, "names.b": True}
        for step, planner in ((10, muster.torch.SavePlanner()), (11, None)):
            self.save(values, step, planner)
            with muster.init() as gang:
                for name, is_plain in plain.items() if planner else ():
                    content = gang._reading(step, None).leaf("bytes", "/" + name, 0)
                    self.assertEqual(content.startswith(b"muster-tree/1\n"), is_plain, name)
            got = {"epoch": 0, "lr": 0.0, "bytes": b"", "kind": None, "names": {"a": [0.0, 0], "b": ""}}
            self.load(got, step, muster.torch.LoadPlanner())
            self.assertEqual(repr(got), repr(values))

    def test_a_tensor_of_another_type_is_converted(self) -> None:
        self.save({"w": torch.tensor([1.0, 2.5])})
        got = {"w": torch.zeros(2, dtype=torch.float64)}
        torch.set_default_device("meta")
        try:
            self.load(got)
        finally:
            torch.set_default_device("cpu")
        self.assertEqual(got["w"].tolist(), [1.0, 2.5])

    def test_a_tensor_without_memory_is_not_filled_in_silence(self) -> None:
        class Planner(dcp.DefaultLoadPlanner):
            """As PyTorch's, which gives such tensors memory first where there is a process group."""

            def resolve_tensor(self, item: Any) -> torch.Tensor:
                return super().resolve_tensor(item).to("meta")

        self.save({"w": torch.tensor([1.0, 2.5])})
        for dtype in (torch.float32, torch.float64):
            with self.assertRaisesRegex(CheckpointException, "'w' cannot be restored into a tensor on the meta device"):
                self.load({"w": torch.zeros(2, dtype=dtype)}, planner=Planner())

    def test_the_metadata_are_the_planners_and_no_pickle(self) -> None:
        state = {"w": torch.ones(2, 3), "n": {"m": 1}}
        self.save(state)
        table = json.loads(self.structure().partition(b"\n")[2])["dcp"]
        self.assertEqual(table["n.m"], {"path": ["n", "m"], "rank": 0})
        with muster.init() as gang:
            metadata = muster.torch.StorageReader(gang, 10).read_metadata()
        planner = dcp.DefaultSavePlanner()
        planner.set_up_planner(state, None, True)
        _, expected = planner.create_global_plan([planner.create_local_plan()])
        self.assertEqual(metadata.state_dict_metadata, expected.state_dict_metadata)
        self.assertEqual(metadata.planner_data, expected.planner_data)

    def test_metadata_that_were_not_written_are_refused(self) -> None:
        """Also what was written and is not in them: both would be missing in a load."""
        for change in (lambda table: table.pop("w"), lambda table: table.update(v=dcp.metadata.BytesStorageMetadata())):
            finish = muster.torch.StorageWriter.finish

            def changed(writer: Any, metadata: Any, results: Any, change: Any = change, finish: Any = finish) -> None:
                change(metadata.state_dict_metadata)
                finish(writer, metadata, results)

            with mock.patch.object(muster.torch.StorageWriter, "finish", changed):
                with self.assertRaisesRegex(CheckpointException, "'[wv]', from .* on, was (written and not planned|planned and not written)"):
                    self.save({"w": torch.ones(2), "n": 1})

    def test_metadata_that_the_writer_would_not_write_are_corrupt(self) -> None:
        for text in (b"[]", b'{"a": {}}', b'{"a": {"size": [1], "dtype": "float32", "chunks": [[[0], [1]]]}}', b'{"a": {"rank": "x"}}'):
            self.save_structure(b'muster-tree/1\n{"dcp": ' + text + b"}")
            with self.assertRaises(CheckpointException, msg=text) as caught:
                self.load({"a": torch.zeros(1)}, 20)
            self.assertIsInstance(caught.exception.failures[0][0], muster.Corrupt)

    def save_structure(self, text: bytes) -> None:
        with muster.init() as gang:
            gang.save_slices({"structure": muster.Slice(text)}, 20)
            gang.wait(20, timeout=10)

    def test_a_type_of_a_newer_pytorch_is_named(self) -> None:
        self.save_structure(b'muster-tree/1\n{"dcp": {"w": {"size": [1], "dtype": "float6_e1m4", "chunks": [[[0], [1], 0]]}}}')
        with self.assertRaisesRegex(CheckpointException, "'w' is of type 'float6_e1m4', which PyTorch"):
            self.load({"w": torch.zeros(1)}, 20)

    def test_a_checkpoint_that_is_not_there_is_named(self) -> None:
        with self.assertRaises(CheckpointException) as caught:
            self.load({"w": torch.zeros(1)}, 77)
        self.assertIsInstance(caught.exception.failures[0][0], muster.NotFound)
        with muster.init() as gang, self.assertRaisesRegex(CheckpointException, "no checkpoint that this generation starts from"):
            dcp.load({"w": torch.zeros(1)}, storage_reader=muster.torch.StorageReader(gang))

    def test_a_name_or_a_shape_that_is_not_there_is_named(self) -> None:
        self.save({"w": torch.ones(2)})
        with self.assertRaisesRegex(CheckpointException, "Missing key in checkpoint state_dict: v"):
            self.load({"v": torch.zeros(2)})
        with self.assertRaisesRegex(CheckpointException, "Size mismatch .* for w|w.*[Ss]ize"):
            self.load({"w": torch.zeros(3)})

    def test_a_save_in_a_thread_lets_training_go_on(self) -> None:
        torch.distributed.init_process_group("gloo", init_method=f"file://{self.socket}.group", rank=0, world_size=1)
        self.addCleanup(torch.distributed.destroy_process_group)
        state = {"model": torch.arange(6.0).reshape(2, 3), "epoch": 3}
        with muster.init() as gang:
            saving = dcp.async_save(state, checkpoint_id="run/step-30", storage_writer=muster.torch.StorageWriter(gang))
            step = 0
            while not saving.done():
                gang.step(step := step + 1)
            saving.result()
            gang.wait(30, timeout=10)
            self.assertEqual(gang.committed, 30)
        got = {"model": torch.zeros(2, 3), "epoch": None}
        self.load(got, 30)
        self.assertTrue(torch.equal(got["model"], state["model"]))
        self.assertEqual(got["epoch"], 3)

    def test_the_step_may_be_the_end_of_a_checkpoint_id(self) -> None:
        with muster.init() as gang:
            writer = muster.torch.StorageWriter(gang)
            with self.assertRaisesRegex(ValueError, "which step"):
                writer.set_up_storage_writer(True)
            writer.reset("runs/step-100")
            self.assertEqual(writer.step, 100)
            reader = muster.torch.StorageReader(gang)
            reader.reset("7")
            self.assertEqual(reader.step, 7)
            with self.assertRaisesRegex(ValueError, "'last' does not end in the number of a step"):
                reader.reset("last")
            for ended in ("runs/step-8/", Path("runs/step-8")):  # the steps of one reader or writer, one after the other
                reader.reset(ended)
                self.assertEqual(reader.step, 8)
            writer.reset()
            with self.assertRaisesRegex(ValueError, "which step"):
                writer.set_up_storage_writer(True)
        self.assertTrue(muster.torch.StorageWriter.validate_checkpoint_id("step-1"))
        self.assertFalse(muster.torch.StorageReader.validate_checkpoint_id("latest"))


    def test_a_checkpoint_id_never_overrides_the_step_that_is_given(self) -> None:
        state, got = {"w": torch.ones(2)}, {"w": torch.zeros(2)}
        with muster.init() as gang:
            writer = muster.torch.StorageWriter(gang, 500)
            for wrong in ("runs/exp3", "step-0", "499/"):
                with self.assertRaisesRegex(ValueError, f"checkpoint_id '{wrong}' ends in .*, and the step that is given is 500"):
                    dcp.save(state, checkpoint_id=wrong, storage_writer=writer)
            self.assertEqual(self.musterd.shards, {})
            for step, checkpoint_id in ((500, "runs/experiment"), (501, "runs/step-501"), (502, Path("step-0502")), (503, None)):
                dcp.save(state, checkpoint_id=checkpoint_id, storage_writer=muster.torch.StorageWriter(gang, step))
                gang.wait(step, timeout=10)
            self.assertEqual(list(self.musterd.shards), [500, 501, 502, 503])
            reader = muster.torch.StorageReader(gang, 500)
            with self.assertRaisesRegex(ValueError, "checkpoint_id 'exp3' ends in 3, and the step that is given is 500"):
                dcp.load(got, checkpoint_id="exp3", storage_reader=reader)
            self.assertEqual(got["w"].tolist(), [0, 0])
            dcp.load(got, checkpoint_id="runs/experiment", storage_reader=reader)
            self.assertEqual(got["w"].tolist(), [1, 1])


class ImportTest(unittest.TestCase):
    def test_an_older_pytorch_is_refused_by_name(self) -> None:
        code = "import torch; torch.__version__ = '2.3.1'; import muster.torch"
        done = subprocess.run([sys.executable, "-c", code], timeout=60, capture_output=True, text=True)
        self.assertIn("ImportError: muster.torch needs torch 2.4 or newer, and this is 2.3.1", done.stderr)


if __name__ == "__main__":
    unittest.main()
