#!/usr/bin/python3
"""The Python package against a musterd of the test's own, through the real libmuster.

The build's python folder must be in PYTHONPATH.
"""

import contextlib
import io
import os
import random
import subprocess
import sys
import time
import unittest
import unittest.mock
from collections import OrderedDict
from typing import Any

import muster
from python_rig import MemberCase


class PackageTest(MemberCase):
    def go_round(self, state: Any) -> Any:
        with muster.open() as gang:
            gang.save(state, 10)
            gang.wait(timeout=10)
            found = gang.restore(10)
        assert found is not None
        self.assertEqual(found[1], 10)
        return found[0]

    def test_outside_of_a_gang_it_says_so(self) -> None:
        del os.environ["MUSTER_GANG"]
        with self.assertRaises(muster.NotInGang) as caught:
            muster.open()
        self.assertIn("MUSTER_GANG", str(caught.exception))

    def test_it_says_who_this_member_is(self) -> None:
        self.musterd.restore_step = 30
        with muster.open() as gang:
            self.assertEqual((gang.rank, gang.world_size, gang.generation), (1, 2, 4))
            self.assertEqual((gang.restore_step, gang.committed), (30, 30))
            gang.progress(7)
            deadline = time.monotonic() + 10
            while not gang.should_checkpoint() and time.monotonic() < deadline:
                pass
            self.assertTrue(gang.should_checkpoint())
            self.assertFalse(gang.should_exit())
        with self.assertRaises(ValueError):
            gang.progress(8)

    def test_without_a_checkpoint_there_is_nothing_to_restore(self) -> None:
        with muster.open() as gang:
            self.assertIsNone(gang.restore_step)
            self.assertIsNone(gang.committed)
            self.assertIsNone(gang.restore())
            self.assertIsNone(gang.restore(77))

    def test_plain_values_come_back_as_they_were(self) -> None:
        state = {
            "none": None,
            "numbers": [0, -1, 2**100, 0.1, -0.0, 1e-300, float("inf"), complex(1, float("-inf")), True, False],
            "texts": ["", "größe", "\x00\n", b"", b"\x00\xff", ("a", ("b",), [])],
            3: {None: 1, (1, "x"): 2, 1.5: {}},
            "ordered": OrderedDict([("z", 1), ("a", 2)]),
            "python": random.Random(1).getstate(),
        }
        got = self.go_round(state)
        self.assertEqual(got, state)
        self.assertEqual(repr(got), repr(state))
        self.assertIs(type(got["ordered"]), OrderedDict)
        nan = self.go_round([float("nan")])[0]
        self.assertNotEqual(nan, nan)

    def test_arrays_come_back_as_they_were(self) -> None:
        import numpy

        arrays = [
            numpy.arange(24, dtype=numpy.int16).reshape(2, 3, 4).transpose(2, 0, 1),
            numpy.array(3.5),
            numpy.zeros((0, 5), dtype=">f8"),
            numpy.array([True, False]),
            numpy.array(["2024-01-01"], dtype="datetime64[D]"),
        ]
        for before, after in zip(arrays, self.go_round(arrays)):
            self.assertEqual((before.dtype, before.shape), (after.dtype, after.shape))
            numpy.testing.assert_array_equal(before, after)
        scalar = self.go_round({"x": numpy.float64(0.5)})["x"]
        self.assertIs(type(scalar), numpy.float64)

    def test_tensors_come_back_as_they_were(self) -> None:
        import torch

        tensors = {
            "bf16": torch.randn(3, 5).to(torch.bfloat16),
            "view": torch.arange(20).reshape(4, 5).t()[1:3],
            "zero": torch.tensor(7),
            "empty": torch.empty(0, 3),
            "bool": torch.tensor([True, False]),
            "complex": torch.randn(3, dtype=torch.complex64).conj(),
            "parameter": torch.nn.Parameter(torch.randn(2)),
        }
        got = self.go_round(tensors)
        for name, before in tensors.items():
            self.assertEqual((before.dtype, before.shape), (got[name].dtype, got[name].shape), name)
            self.assertTrue(torch.equal(before, got[name]), name)
            self.assertFalse(got[name].requires_grad)

    def test_a_model_and_its_optimizer_go_on_as_if_nothing_had_happened(self) -> None:
        import torch

        def make() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
            torch.manual_seed(5)
            model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
            return model, torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.8, 0.9))

        def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
            optimizer.zero_grad()
            model(torch.randn(6, 4)).square().mean().backward()
            optimizer.step()

        model, optimizer = make()
        for _ in range(3):
            train(model, optimizer)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}
        restored = self.go_round(state)
        train(model, optimizer)
        again, again_optimizer = make()
        again.load_state_dict(restored["model"])
        again_optimizer.load_state_dict(restored["optimizer"])
        torch.set_rng_state(restored["rng"])
        train(again, again_optimizer)
        for before, after in zip(model.state_dict().values(), again.state_dict().values()):
            self.assertTrue(torch.equal(before, after))

    def test_what_cannot_be_saved_is_named_and_nothing_is_saved(self) -> None:
        import numpy
        import torch

        with muster.open() as gang:
            for value in (object(), {1, 2}, numpy.array([object()]), torch.eye(2).to_sparse()):
                with self.assertRaisesRegex(TypeError, r"state\['a'\]\[1\]"):
                    gang.save({"a": [0, value]}, 1)
            gang.save({"a": 1}, 1)  # the step is still free
            gang.wait(1, timeout=10)
            with self.assertRaises(ValueError):
                gang.save({}, -1)

    def test_a_save_may_be_skipped_while_two_are_on_their_way(self) -> None:
        self.musterd.commit = False
        with muster.open() as gang:
            self.assertTrue(gang.save("a", 1, block=False))
            self.assertTrue(gang.save("b", 2, block=False))
            self.assertFalse(gang.save("c", 3, block=False))
            with self.assertRaises(TimeoutError):
                gang.wait(2, timeout=0.01)

    def test_a_wait_of_a_second_is_said_once_a_minute(self) -> None:
        with muster.open() as gang:
            begin = gang._library.save_begin
            until = 0.0

            def busy(*arguments: Any) -> None:
                if time.monotonic() < until:
                    raise muster.Busy(-8, "both staging buffers are still being written")
                begin(*arguments)

            with unittest.mock.patch.object(gang._library, "save_begin", busy):
                said = io.StringIO()
                with contextlib.redirect_stderr(said):
                    for step in (1, 2):
                        until = time.monotonic() + 1.1
                        gang.save("a", step)
        self.assertRegex(said.getvalue(), r"^muster: rank 1: the save of step 1 waited [0-9.]+ s for a staging buffer: .*\n$")

    def save_states(self, states: list[Any]) -> None:
        """The checkpoint of step 20, by as many members."""
        self.save_as_gang_of(len(states), lambda gang, step: gang.save(states[gang.rank], step))

    def test_a_gang_of_another_size_divides_the_shards_anew(self) -> None:
        self.save_states([{"part": [0, 1]}, {"part": [2, 3]}, {"part": [4]}])
        with muster.open() as gang:
            self.assertEqual(gang.restore_info(), (20, 3))
            with self.assertRaises(muster.MusterError):
                gang.restore()
            parts = [x for state in gang.restore_shards() for x in state["part"]]
            self.assertEqual(parts, [0, 1, 2, 3, 4])
            self.assertEqual(gang.restore_shard(2), ({"part": [4]}, 20))
            with self.assertRaises(muster.MusterError):
                gang.restore_shard(3)
            size = -(-len(parts) // gang.world_size)
            self.assertEqual(parts[gang.rank * size : (gang.rank + 1) * size], [3, 4])

    def test_what_all_members_saved_alike_is_restored_whatever_their_number(self) -> None:
        self.save_states([{"weights": 7}] * 3)
        with muster.open() as gang:
            self.assertEqual(gang.restore(replicated=True), ({"weights": 7}, 20))
        self.assertEqual(self.go_round({"weights": 8}), {"weights": 8})

    def test_without_a_checkpoint_there_are_no_shards(self) -> None:
        with muster.open() as gang:
            self.assertIsNone(gang.restore_info())
            self.assertIsNone(gang.restore(replicated=True))
            self.assertIsNone(gang.restore_shard(0))
            self.assertEqual(list(gang.restore_shards()), [])
            self.assertEqual(list(gang.restore_shards(5)), [])

    def test_a_shard_of_another_program_is_corrupt(self) -> None:
        import ctypes

        library = ctypes.CDLL(muster._library._find())
        for function in (library.muster_save_begin, library.muster_save_add):
            function.restype = ctypes.c_int
        handle = ctypes.c_void_p()
        self.assertEqual(library.muster_open(ctypes.byref(handle)), 0)
        library.muster_save_begin(handle, ctypes.c_uint64(5), ctypes.c_size_t(0))
        library.muster_save_add(handle, b"weights", None, b"1234", ctypes.c_size_t(4))
        self.assertEqual(library.muster_save_commit(handle), 0)
        self.assertEqual(library.muster_wait(handle, ctypes.c_uint64(5), 10000), 0)
        library.muster_close(handle)
        with muster.open() as gang, self.assertRaises(muster.Corrupt):
            gang.restore(5)

    def test_structures_that_flatten_would_not_write_are_corrupt(self) -> None:
        for structure in (b"", b"{", b'{"a":1,"b":2}', b'{"eval":"1"}', b'{"tensor":"x"}', b'{"tensor":9}', b"{}",
                          b'{"dict":[[[],1]]}', b'{"array":0}', b'{"tuple":3}', b"[" * 100000):  # fmt: skip
            entries = {
                muster.tree.STRUCTURE: muster.tree.Entry.of(muster.tree.META, structure),
                "0": muster.tree.Entry.of('{"dtype": "|O", "shape": [1]}', bytes(8)),
            }
            with self.assertRaises(muster.Corrupt, msg=structure[:20]):
                muster.tree.unflatten(entries.__getitem__)

    def test_importing_it_imports_neither_torch_nor_numpy(self) -> None:
        code = "import muster, sys; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
        subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


if __name__ == "__main__":
    unittest.main()
