#!/usr/bin/python3
"""Tensors of a GPU, through the real libmuster against a musterd of the test's own.

With the GPU where PyTorch has one. Else STAND_IN_CUDA names the stand-in for the driver (stand_in_cuda.cc), and tensors say
that they are on a GPU and are in the stand-in's memory, which the CPU cannot read.
"""

import ctypes
import os
import unittest
from types import SimpleNamespace
from typing import Any
from unittest import mock

import muster
import torch
from python_rig import MemberCase


recorded: list[int] = []  # the streams that PyTorch was told of


class OnGpu(torch.Tensor):
    """What the package asks a tensor of CUDA for."""

    address: int

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", 0)

    def detach(self) -> "OnGpu":
        return self

    resolve_conj = resolve_neg = contiguous = detach

    def data_ptr(self) -> int:
        return self.address

    def record_stream(self, stream: Any) -> None:  # type: ignore[override]
        recorded.append(stream.cuda_stream)

    def cpu(self) -> torch.Tensor:  # type: ignore[override]
        raise AssertionError("a tensor of a GPU was copied by PyTorch")


class StandIn:
    """A GPU's memory as the stand-in has it: bytes of one value."""

    def __init__(self) -> None:
        self.driver = ctypes.CDLL(os.environ["STAND_IN_CUDA"])
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxPushCurrent_v2", context)
        self.stream = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(self.stream), 1)

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self.driver, name)(*arguments)
        if code != 0:
            raise OSError(f"{name} gives {code}")

    def full(self, value: int, count: int) -> torch.Tensor:
        address = ctypes.c_uint64()
        if count > 0:  # else there is no memory, as with the driver
            self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(count))
            self.call("cuMemsetD8Async", address, ctypes.c_ubyte(value), ctypes.c_size_t(count), self.stream)
        tensor: OnGpu = torch.Tensor._make_subclass(OnGpu, torch.zeros(count, dtype=torch.uint8))  # type: ignore[attr-defined]
        tensor.address = address.value
        return tensor


class DeviceTest(MemberCase):
    def setUp(self) -> None:
        super().setUp()
        if torch.cuda.is_available():
            self.full = lambda value, count: torch.full((count,), value, dtype=torch.uint8, device="cuda")
            return
        gpu = StandIn()
        self.full = gpu.full
        # The only one that has been given work: another one's would leave the memory as it was.
        streams = {torch.device("cuda", 0): SimpleNamespace(cuda_stream=gpu.stream.value)}
        for name, value in (("torch.version.cuda", "12.4"), ("torch.cuda.current_stream", streams.__getitem__)):
            patch = mock.patch(name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def test_a_state_with_tensors_of_both_kinds(self) -> None:
        with muster.init() as gang:
            gang.save({"gpu": self.full(7, 5000), "cpu": torch.ones(3), "empty": self.full(1, 0)}, 1)
            gang.wait(timeout=10)
            found = gang.restore(1)
        assert found is not None
        self.assertTrue(torch.equal(found[0]["gpu"], torch.full((5000,), 7, dtype=torch.uint8)))
        self.assertTrue(torch.equal(found[0]["cpu"], torch.ones(3)))
        self.assertEqual(found[0]["empty"].numel(), 0)

    def test_parts_that_come_one_after_the_other(self) -> None:
        parts = ((f"t{i}", muster.Slice(self.full(i, 100), (200,), (100,))) for i in range(1, 4))
        recorded.clear()
        with muster.init() as gang:
            gang.save_slices(parts, 1)
            gang.wait(timeout=10)
            self.musterd.others[1] = [self.musterd.shards[1]] * 2
            for i in range(1, 4):
                got = torch.zeros(100, dtype=torch.uint8)
                gang.restore_slices({f"t{i}": muster.Slice(got, (200,), (100,))}, 1)
                self.assertTrue(torch.equal(got, torch.full((100,), i, dtype=torch.uint8)))
        if not torch.cuda.is_available():
            self.assertEqual(len(recorded), 3, "PyTorch would give the memory away before it is copied")

    def test_what_is_no_cuda_goes_through_the_cpu(self) -> None:
        with mock.patch("torch.version.cuda", None), self.assertRaisesRegex(AssertionError, "copied by PyTorch"):
            muster.slices.to_save("w", muster.Slice(StandIn().full(1, 10))).buffer.ready()

    def test_what_does_not_lie_row_by_row_is_not_doubled_on_the_gpu(self) -> None:
        tensor = StandIn().full(1, 10)
        with mock.patch.object(tensor, "is_contiguous", lambda: False), self.assertRaisesRegex(AssertionError, "copied by PyTorch"):
            muster.slices.to_save("w", muster.Slice(tensor)).buffer.ready()


if __name__ == "__main__":
    unittest.main()
