#!/usr/bin/python3
"""muster.torch, through the real libmuster against a musterd of the test's own.

The build's python folder must be in PYTHONPATH. What needs several processes is in tests/cluster/test_slices.py.
"""

import importlib
import json
import threading
import unittest
from collections import Counter, OrderedDict, defaultdict, namedtuple
from typing import Any
from unittest import mock

import muster
import muster.torch
import numpy
import torch
from muster.torch import _dcp
from python_rig import MemberCase

dcp = muster.torch.dcp
CheckpointException = importlib.import_module(dcp.__name__ + ".api").CheckpointException
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
        with muster.open() as gang:
            found = muster.torch.load(gang)
            assert found is not None
            self.assertEqual(found[1], 20)
            self.check(found[0], 1)

    def test_tensors_are_filled_where_they_are(self) -> None:
        self.save_as_gang_of(2, lambda gang, step: muster.torch.save(gang, state_of(gang.rank), step))
        into = {"model": {"0.weight": torch.zeros(4, 3).t(), "0.bias": torch.nn.Parameter(torch.zeros(3))}}
        with muster.open() as gang:
            found = muster.torch.load(gang, into)
            assert found is not None
            self.assertIs(found[0]["model"]["0.weight"], into["model"]["0.weight"])
            self.assertIs(found[0]["model"]["0.bias"], into["model"]["0.bias"])
            self.check(found[0], 1)

    def test_what_all_have_alike_is_saved_once_and_restored_by_any_number(self) -> None:
        self.save_as_gang_of(3, lambda gang, step: muster.torch.save(gang, state_of(gang.rank), step, replicated=True))
        shards = self.musterd.others[20]
        for name in (b"tensor/model.0.weight", b"tensor/model.0.bias", b"tensor/optimizer.state.0.exp_avg"):
            # In each shard the name is in the state; the entry is in one.
            self.assertEqual(sum(shard.count(name + b"muster-slice/1") for shard in shards), 1, name)
        with muster.open() as gang:
            found = muster.torch.load(gang)
            assert found is not None
            self.check(found[0], 1)

    def test_a_tensor_without_memory_is_not_filled_in_silence(self) -> None:
        self.save_as_gang_of(2, lambda gang, step: muster.torch.save(gang, state_of(gang.rank), step))
        into = {"model": {"0.weight": torch.zeros(3, 4, device="meta")}}
        with muster.open() as gang:
            with self.assertRaisesRegex(ValueError, "'tensor/model.0.weight' cannot be restored into a tensor on the meta"):
                muster.torch.load(gang, into)
            with self.assertRaisesRegex(ValueError, "'tensor/w' is a tensor on the meta device, which has no data"):
                muster.torch.save(gang, {"w": torch.zeros(1, device="meta")}, 1)

    def test_a_generators_state_as_an_array_stays_each_members_own(self) -> None:
        def generator(rank: int) -> torch.Generator:
            return torch.Generator().manual_seed(rank)

        def save(gang: muster.Gang, step: int) -> None:
            muster.torch.save(gang, {"rng": generator(gang.rank).get_state().numpy()}, step, replicated=True)

        self.save_as_gang_of(3, save)
        with muster.open() as gang:
            found = muster.torch.load(gang)
        assert found is not None
        restored = torch.Generator()
        restored.set_state(torch.from_numpy(found[0]["rng"]))
        self.assertEqual(torch.rand(1, generator=restored), torch.rand(1, generator=generator(1)))

    def test_without_a_checkpoint_there_is_nothing_to_load(self) -> None:
        with muster.open() as gang:
            self.assertIsNone(muster.torch.load(gang))
            self.assertIsNone(muster.torch.load(gang, step=7))

    def test_another_kind_of_checkpoint_is_named(self) -> None:
        self.save_as_gang_of(2, lambda gang, step: gang.save({"a": 1}, step))
        with muster.open() as gang, self.assertRaisesRegex(muster.NotFound, "no state that muster.torch.save"):
            muster.torch.load(gang)

    def test_gang_restore_says_what_reads_it(self) -> None:
        with muster.open() as gang:
            muster.torch.save(gang, state_of(gang.rank), 10)
            gang.wait(10, timeout=10)
            with self.assertRaisesRegex(muster.MusterError, "muster.torch.load reads it") as caught:
                gang.restore(10)
        self.assertNotIsInstance(caught.exception, muster.Corrupt)

    def test_a_type_of_a_newer_pytorch_is_named(self) -> None:
        def save(gang: muster.Gang, step: int) -> None:
            with mock.patch("muster.slices.tensor_dtype", return_value="float6_e1m4"):
                muster.torch.save(gang, {"w": torch.ones(2)}, step)

        self.save_as_gang_of(2, save)
        with muster.open() as gang, self.assertRaisesRegex(muster.MusterError, "'tensor/w' is of type 'float6_e1m4'") as caught:
            muster.torch.load(gang)
        self.assertNotIsInstance(caught.exception, muster.Corrupt)

    def test_states_that_save_would_not_write_are_corrupt(self) -> None:
        for text in (b"", b"{}\n{}", b'{"format": "muster-torch", "version": 2}\n1',
                     b'{"format": "muster-torch", "version": 1, "leaves": ["{}"]}\n{"bytes": 0}',
                     b'{"format": "muster-torch", "version": 1, "leaves": []}\n{"bytes": 0}'):  # fmt: skip
            self.save_as_gang_of(1, lambda gang, step: gang.save_slices({"muster.torch/state": muster.Slice(text)}, step))
            with muster.open() as gang, self.assertRaises(muster.Corrupt, msg=text):
                muster.torch.load(gang)

    def test_dicts_of_other_types_come_back_as_they_were(self) -> None:
        state = {"c": Counter({3: 2}), "d": defaultdict(list, {"w": [torch.ones(2)]}), "size": torch.Size([2, 3])}
        self.save_as_gang_of(2, lambda gang, step: muster.torch.save(gang, state, step, replicated=True))
        with muster.open() as gang:
            found = muster.torch.load(gang)
        assert found is not None
        self.assertEqual(repr(found[0]), repr(state | {"size": (2, 3)}))

    def test_what_cannot_be_saved_is_named(self) -> None:
        with muster.open() as gang:
            with self.assertRaisesRegex(TypeError, r"state\['p'\]\[0\] is a Point, which cannot be saved: save its _asdict"):
                muster.torch.save(gang, {"p": [Point(torch.ones(1), 2)]}, 1)
            with self.assertRaisesRegex(TypeError, "tensor/a.0' is a sparse"):
                muster.torch.save(gang, {"a": [torch.eye(2).to_sparse()]}, 1)
            with self.assertRaisesRegex(TypeError, "state.'b'. is a set"):
                muster.torch.save(gang, {"b": {1}}, 1)
            with self.assertRaisesRegex(ValueError, "two tensors of the state are called 'a.1'"):
                muster.torch.save(gang, {"a": {1: torch.ones(1), "1": torch.ones(1)}}, 1)


class DcpTest(MemberCase):
    def save(self, state: dict[str, Any], step: int = 10) -> None:
        with muster.open() as gang:
            dcp.save_state_dict(state, muster.torch.StorageWriter(gang, step), no_dist=True)

    def test_a_state_goes_round(self) -> None:
        state = {
            "weight": torch.arange(12.0).reshape(3, 4),
            "half": torch.randn(5).to(torch.bfloat16),
            "number": torch.tensor(3),
            "empty": torch.empty(0, 4),
            "steps": 7,
            "names": {"a": [1, 2]},
        }
        self.save(state)
        got = {name: torch.zeros_like(v) if isinstance(v, torch.Tensor) else None for name, v in state.items()}
        got["weight"] = torch.zeros(4, 3).t()
        with muster.open() as gang:
            dcp.load_state_dict(got, muster.torch.StorageReader(gang, 10), no_dist=True)
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                self.assertTrue(torch.equal(got[name], value), name)
            else:
                self.assertEqual(got[name], value)

    def test_with_musters_planners_plain_values_are_not_pickled(self) -> None:
        values = {"epoch": 3, "names": {"a": [1.5, None], 2: ("x", float("inf"))}, "bytes": b"\x00", "kind": torch.float16}
        values |= {"point": Point(1, 2), "counter": Counter({3: 2})}
        with muster.open() as gang:
            writer = muster.torch.StorageWriter(gang, 10)
            dcp.save_state_dict(values, writer, no_dist=True, planner=muster.torch.SavePlanner())
            for name, plain in (("epoch", True), ("names", True), ("bytes", False), ("kind", False), ("point", False), ("counter", True)):
                content = gang.restore_bytes(f"dcp/bytes/{name}", 10)
                assert content is not None
                self.assertEqual(content.startswith(b"muster-tree/1\n"), plain, name)
            got = dict.fromkeys(values)
            reader = muster.torch.StorageReader(gang, 10)
            dcp.load_state_dict(got, reader, no_dist=True, planner=muster.torch.LoadPlanner())
            self.assertEqual(repr(got), repr(values))
            # What PyTorch's planner has saved is read too.
            dcp.save_state_dict(values, muster.torch.StorageWriter(gang, 11), no_dist=True)
            got = dict.fromkeys(values)
            reader = muster.torch.StorageReader(gang, 11)
            dcp.load_state_dict(got, reader, no_dist=True, planner=muster.torch.LoadPlanner())
            self.assertEqual(got, values)

    def test_a_tensor_of_another_type_is_converted(self) -> None:
        self.save({"w": torch.tensor([1.0, 2.5])})
        got = {"w": torch.zeros(2, dtype=torch.float64)}
        with muster.open() as gang:
            dcp.load_state_dict(got, muster.torch.StorageReader(gang, 10), no_dist=True)
        self.assertEqual(got["w"].tolist(), [1.0, 2.5])

    def test_a_tensor_without_memory_is_not_filled_in_silence(self) -> None:
        self.save({"w": torch.tensor([1.0, 2.5])})
        with muster.open() as gang:
            for dtype in (torch.float32, torch.float64):
                got = {"w": torch.zeros(2, dtype=dtype, device="meta")}
                with self.assertRaisesRegex(CheckpointException, "'w' cannot be restored into a tensor on the meta device"):
                    dcp.load_state_dict(got, muster.torch.StorageReader(gang, 10), no_dist=True)

    def test_the_metadata_are_the_planners_and_no_pickle(self) -> None:
        state = {"w": torch.ones(2, 3, requires_grad=True), "n": 1}
        self.save(state)
        with muster.open() as gang:
            text = gang.restore_bytes("dcp/metadata", 10)
            assert text is not None
            self.assertEqual(json.loads(text)["entries"]["n"], {"rank": 1})
            metadata = muster.torch.StorageReader(gang, 10).read_metadata()
        planner = dcp.default_planner.DefaultSavePlanner()
        planner.init(state, True)
        _, expected = planner.create_global_plan([planner.create_local_plan()])
        self.assertEqual(metadata.state_dict_metadata, expected.state_dict_metadata)

    def test_metadata_that_the_writer_would_not_write_are_corrupt(self) -> None:
        for text in (b"", b"[]", b"{}", b'{"format": "muster-dcp", "version": 2, "entries": {}, "paths": {}}',
                     b'{"format": "muster-dcp", "version": 1, "entries": {"a": {}}, "paths": {}}',
                     b'{"format": "muster-dcp", "version": 1, "paths": {}, "entries": {"a": {"size": [1], "chunks": [],'
                     b' "dtype": "load", "layout": "strided", "requires_grad": false, "memory_format": "contiguous",'
                     b' "pin_memory": false}}}'):  # fmt: skip
            with self.assertRaises((KeyError, ValueError, TypeError, AttributeError), msg=text):
                _dcp._decode(text)

    def test_a_type_of_a_newer_pytorch_is_named(self) -> None:
        self.save({"w": torch.ones(2)})
        with muster.open() as gang:
            text = gang.restore_bytes("dcp/metadata", 10)
        assert text is not None
        with self.assertRaisesRegex(muster.MusterError, "'w' is of type 'float6_e1m4', which PyTorch"):
            _dcp._decode(text.replace(b'"float32"', b'"float6_e1m4"'))

    def test_gang_restore_says_what_reads_it(self) -> None:
        self.save({"w": torch.ones(2)})
        with muster.open() as gang, self.assertRaisesRegex(muster.MusterError, "muster.torch.StorageReader reads it"):
            gang.restore(10)

    def test_a_checkpoint_without_metadata_is_named(self) -> None:
        self.save_as_gang_of(1, lambda gang, step: gang.save({}, step))
        with muster.open() as gang, self.assertRaisesRegex(muster.NotFound, "that this generation starts from"):
            muster.torch.StorageReader(gang).read_metadata()

    def test_the_current_interface_saves_in_a_thread_while_training_goes_on(self) -> None:
        """The calls that torch.distributed.checkpoint's save, async_save and load of PyTorch 2 make, in their order."""
        state = {"model": torch.arange(6.0).reshape(2, 3), "epoch": 3}
        planner = dcp.default_planner.DefaultSavePlanner()
        with muster.open() as gang:

            def save(writer: Any) -> None:
                writer.reset("run/step-30")
                planner.init(state, True)
                writer.set_up_storage_writer(True, rank=0, use_collectives=True)
                plan = writer.prepare_local_plan(planner.create_local_plan())
                plans, metadata = planner.create_global_plan([plan])
                plan = planner.finish_plan(writer.prepare_global_plan(plans)[0])
                writes = writer.write_data(plan, planner)
                writes.wait()
                writer.finish(metadata=metadata, results=[writes.value()])

            saving = threading.Thread(target=save, args=(muster.torch.StorageWriter(gang),))
            saving.start()
            for step in range(100):
                gang.progress(step)
            saving.join(10)
            self.assertEqual(gang.committed, 30)

            got = {"model": torch.zeros(2, 3), "epoch": None}
            reader, loader = muster.torch.StorageReader(gang), dcp.default_planner.DefaultLoadPlanner()
            reader.reset("run/step-30")
            metadata = reader.read_metadata(rank=0)
            loader.init(got, metadata, True)
            reader.set_up_storage_reader(metadata, True, rank=0)
            plan = reader.prepare_local_plan(loader.create_local_plan())
            plan = loader.finish_plan(reader.prepare_global_plan(loader.create_global_plan([plan]))[0])
            reader.read_data(plan, loader).wait()
        self.assertTrue(torch.equal(got["model"], state["model"]))
        self.assertEqual(got["epoch"], 3)

    def test_the_step_may_be_the_end_of_a_checkpoint_id(self) -> None:
        with muster.open() as gang:
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
        self.assertTrue(muster.torch.StorageWriter.validate_checkpoint_id("step-1"))
        self.assertFalse(muster.torch.StorageReader.validate_checkpoint_id("latest"))


if __name__ == "__main__":
    unittest.main()
