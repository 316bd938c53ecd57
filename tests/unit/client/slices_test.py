#!/usr/bin/python3
"""Slices of the Python package, through the real libmuster against a musterd of the test's own.

The build's python folder must be in PYTHONPATH.
"""

import re
import threading
import time
import unittest

import muster
import numpy
import torch
from python_rig import MemberCase

WHOLE = numpy.arange(60, dtype=numpy.float32).reshape(6, 10)


class SlicesTest(MemberCase):
    def save_rows(self, members: int) -> None:
        rows = 6 // members

        def save(gang: muster.Gang, step: int) -> None:
            first = gang.rank * rows
            part = torch.from_numpy(WHOLE)[first : first + rows]
            gang.save({"rank": gang.rank}, step, slices={"w": muster.Slice(part, (6, 10), (first, 0))})

        self.save_as_gang_of(members, save)

    def test_rows_of_three_members_are_columns_of_two(self) -> None:
        self.save_rows(3)
        with muster.init() as gang:
            columns = numpy.zeros((6, 5), dtype=numpy.float32)
            gang.restore_slices({"w": muster.Slice(columns, (6, 10), (0, 5))})
            numpy.testing.assert_array_equal(columns, WHOLE[:, 5:])
            self.assertEqual(gang.slice_info("w"), muster.SliceInfo("float32", 4, (6, 10)))
            self.assertEqual(gang.slice_info("w", 20), muster.SliceInfo("float32", 4, (6, 10)))
            self.assertIsNone(gang.slice_info("v"))
            self.assertEqual(gang.restore_shard(2), ({"rank": 2}, 20))

    def test_a_part_that_consists_of_slices_says_what_reads_it(self) -> None:
        with muster.init() as gang:
            gang.save_slices({"w": muster.Slice(WHOLE)}, 10)
            gang.wait(10, timeout=10)
            with self.assertRaisesRegex(muster.MusterError, "no state of this member.*: Gang.restore_slices reads") as caught:
                gang.restore(10)
        self.assertNotIsInstance(caught.exception, muster.Corrupt)

    def test_what_is_filled_may_be_a_view_of_any_kind(self) -> None:
        self.save_rows(2)
        with muster.init() as gang:
            tensor = torch.zeros(10, 6).t()
            array = numpy.zeros((20, 6), dtype=numpy.float32, order="F")[::2].T
            gang.restore_slices([("w", muster.Slice(tensor)), ("w", muster.Slice(array))])
            numpy.testing.assert_array_equal(tensor.numpy(), WHOLE)
            numpy.testing.assert_array_equal(array, WHOLE)
            parameter = torch.nn.Parameter(torch.zeros(6, 10))
            gang.restore_slices({"w": muster.Slice(parameter)})
            self.assertTrue(torch.equal(parameter.detach(), torch.from_numpy(WHOLE)))

    def test_a_member_may_save_several_parts_of_a_tensor_and_bytes(self) -> None:
        def save(gang: muster.Gang, step: int) -> None:
            parts = [muster.Slice(WHOLE[i : i + 2, ::-1][:, ::-1], (6, 10), (i, 0)) for i in (0, 2, 4)]
            more = [("text", muster.Slice(b"some bytes")), ("none", muster.Slice(b""))]
            more += [("number", muster.Slice(torch.tensor(7)))]
            gang.save_slices([("w", part) for part in parts] + more, step)

        self.save_as_gang_of(1, save)
        with muster.init() as gang:
            whole = torch.zeros(6, 10)
            number = torch.tensor(0)
            gang.restore_slices({"w": muster.Slice(whole), "number": muster.Slice(number)})
            numpy.testing.assert_array_equal(whole.numpy(), WHOLE)
            self.assertEqual(number.item(), 7)
            text = bytearray(10)
            gang.restore_slices([("text", muster.Slice(text)), ("none", muster.Slice(bytearray()))])
            self.assertEqual(text, b"some bytes")

    def test_what_nobody_saved_or_saved_otherwise_is_named(self) -> None:
        self.save_rows(3)
        with muster.init() as gang:
            with self.assertRaisesRegex(muster.NotFound, "nobody saved a part of a tensor 'v'"):
                gang.restore_slices({"v": muster.Slice(numpy.zeros(3))})
            with self.assertRaisesRegex(muster.MusterError, "was saved by rank . as float32 .* not as float64"):
                gang.restore_slices({"w": muster.Slice(numpy.zeros((6, 10)))})
            with self.assertRaisesRegex(muster.MusterError, "goes beyond dimension 0"):
                gang.restore_slices({"w": muster.Slice(numpy.zeros((4, 10), numpy.float32), (6, 10), (3, 0))})
            with self.assertRaisesRegex(muster.MusterError, "no shard of rank 3"):
                gang.restore_slices({"w": muster.Slice(torch.zeros(6, 10), first_rank=3)})

    def test_bad_slices_are_refused_before_anything_is_saved(self) -> None:
        read_only = numpy.zeros(3)
        read_only.flags.writeable = False
        with muster.init() as gang:
            for error, part, why in (
                (ValueError, muster.Slice(WHOLE, (60,)), "2 dimensions, its global shape 1"),
                (ValueError, muster.Slice(WHOLE, (6, 10), (0,)), "its offset 1"),
                (ValueError, muster.Slice(WHOLE, (6, 10), (0, -1)), "negative"),
                (ValueError, muster.Slice(numpy.zeros([1] * 9)), "9 dimensions; up to 8"),
                (TypeError, muster.Slice([1, 2]), "is a list"),
                (TypeError, muster.Slice(numpy.array([object()])), "array of object"),
                (TypeError, muster.Slice(torch.eye(2).to_sparse()), "sparse"),
                (muster.MusterError, muster.Slice(WHOLE, (5, 10)), "goes beyond dimension 0"),
            ):
                with self.assertRaisesRegex(error, why):
                    gang.save({}, 1, slices={"bad": part})
                with self.assertRaisesRegex(error, why):
                    gang.save_slices({"bad": part}, 1)
            with self.assertRaisesRegex(ValueError, "read-only"):
                gang.restore_slices({"w": muster.Slice(read_only)})
            meta = muster.Slice(torch.zeros(6, 10, device="meta"))
            with self.assertRaisesRegex(ValueError, "'w' is a tensor on the meta device, which has no data"):
                gang.save_slices({"w": meta}, 1)
            with self.assertRaisesRegex(ValueError, "'w' cannot be restored into a tensor on the meta device"):
                gang.restore_slices({"w": meta})
            gang.save({}, 1)  # the step is still free
            gang.wait(1, timeout=10)

    def test_a_name_that_c_would_cut_or_refuse_is_named(self) -> None:
        self.save_rows(2)
        with muster.init() as gang:
            for name in ("w\0rest", "", "ü" * 128):
                for call in (
                    lambda: gang.save({}, 1, slices={name: muster.Slice(WHOLE)}),
                    lambda: gang.save_slices({name: muster.Slice(WHOLE)}, 1),
                    lambda: gang.restore_slices({name: muster.Slice(WHOLE.copy())}),
                    lambda: gang.slice_info(name),
                ):
                    with self.assertRaisesRegex(ValueError, f"^{re.escape(repr(name))} is no name: names have 1 to 255 bytes"):
                        call()
            gang.save({}, 1, slices={"ü" * 127: muster.Slice(WHOLE)})

    def test_types_have_the_same_names_everywhere(self) -> None:
        arrays = {
            "float32": numpy.zeros(1, "f4"),
            "bool": numpy.zeros(1, bool),
            "complex64": numpy.zeros(1, "c8"),
            ">f8": numpy.zeros(1, ">f8"),
            "<M8[D]": numpy.zeros(1, "datetime64[D]"),
        }
        tensors = {"float32": torch.zeros(1), "bfloat16": torch.zeros(1, dtype=torch.bfloat16), "bool": torch.tensor([True])}
        with muster.init() as gang:
            for values in (arrays, tensors):
                step = (gang.committed or 0) + 1
                gang.save_slices({name: muster.Slice(value) for name, value in values.items()}, step)
                gang.wait(timeout=10)
                for name in values:
                    info = gang.slice_info(name, step)
                    assert info is not None
                    self.assertEqual(info.dtype, name)

    def test_a_thread_may_wait_while_another_reports_progress(self) -> None:
        self.musterd.commit = False
        with muster.init() as gang:
            gang.save({}, 1)
            ended = threading.Event()

            def wait() -> None:
                with self.assertRaises(TimeoutError):
                    gang.wait(1, timeout=1.0)
                ended.set()

            waiter = threading.Thread(target=wait)
            waiter.start()
            calls = 0
            while not ended.is_set():
                gang.step(calls)
                calls += 1
                time.sleep(0.001)
            waiter.join()
            self.assertGreater(calls, 10)


if __name__ == "__main__":
    unittest.main()
