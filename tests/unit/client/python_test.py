#!/usr/bin/python3
"""The Python package against a musterd of the test's own, through the real libmuster.

The build's python folder must be in PYTHONPATH.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import gc
import io
import math
import os
import pickle
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
import unittest
import unittest.mock
import weakref
from collections import Counter, OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from typing import Any

import muster
from python_rig import MemberCase


Point = namedtuple("Point", "x y")


class Colour(enum.IntEnum):
    RED = 1


class Text(str):
    pass


class Ten:
    def __index__(self) -> int:
        return 10


class PackageTest(MemberCase):
    step = 100  # of restore_of

    def go_round(self, state: Any) -> Any:
        with muster.init() as gang:
            gang.save(state, 10)
            gang.wait(timeout=10)
            found = gang.restore(10)
        assert found is not None
        self.assertEqual(found[1], 10)
        return found[0]

    def test_outside_of_a_gang_it_says_so(self) -> None:
        del os.environ["MUSTER_GANG"]
        with self.assertRaises(muster.NotInGang) as caught:
            muster.init()
        self.assertIn("MUSTER_GANG", str(caught.exception))

    def test_members_exchange_values(self) -> None:
        with muster.init() as gang:
            self.assertEqual(gang.exchange("where", b"10.0.0.1:4711"), [b"of 0", b"10.0.0.1:4711"])
            self.assertEqual(gang.exchange("nothing", b"", timeout=60), [b"of 0", b""])
            with self.assertRaisesRegex(muster.TimedOut, "the key late is not complete"):
                gang.exchange("late", b"x", timeout=0)
            with self.assertRaisesRegex(muster.TooLarge, "4097 bytes"):
                gang.exchange("large", bytes(4097))
            with self.assertRaisesRegex(muster.MusterError, "visible characters"):
                gang.exchange("two words", b"x")

    def test_it_says_who_this_member_is(self) -> None:
        self.musterd.restore_step = 30
        with muster.init() as gang:
            self.assertEqual((gang.rank, gang.world_size, gang.generation), (1, 2, 4))
            self.assertEqual((gang.restore_step, gang.committed), (30, 30))

    def test_a_step_is_shown_to_musterd_and_answered(self) -> None:
        self.musterd.agreed = (8, 3, "the job\u2019s time limit is near".encode())
        with muster.init() as gang:
            self.assertEqual(gang.step(7), muster.Wish(False, False, None))
            self.assertEqual(self.musterd.entered(), (7, 1))
            self.assertEqual(gang.step(8), (True, True, "the job\u2019s time limit is near"))
            self.assertEqual(gang.step(8), (True, True, "the job\u2019s time limit is near"))
            self.assertEqual(gang.step(9), (False, False, None))
            self.assertEqual(self.musterd.entered(), (9, 4))
            self.assertEqual(gang.step(Ten()), (False, False, None))  # as numbers of numpy are
            for wrong in (-1, -(2**64) + 8, 2**63, 2**64 + 8):
                with self.assertRaisesRegex(ValueError, f"{wrong} is no step"):
                    gang.step(wrong)
            with self.assertRaises(TypeError):
                gang.step(1.5)  # type: ignore[arg-type]
            self.assertEqual(self.musterd.entered(), (10, 5))
        with self.assertRaisesRegex(ValueError, "has been closed"):
            gang.step(11)

    def test_a_step_waits_for_no_other_call(self) -> None:
        """Of a thread that is in one, nor of the one below a signal's handler."""
        with muster.init() as gang:
            held, done = threading.Event(), threading.Event()

            def hold() -> None:
                held.set()
                done.wait(60)

            holder = threading.Thread(target=gang._locked, args=(hold,))
            holder.start()
            held.wait(60)
            for n in range(100):
                gang.step(n)
            done.set()
            holder.join()
            gang._locked(gang.step, 100)
            self.assertEqual(self.musterd.entered(), (100, 101))

    def test_a_step_within_a_step_is_refused_and_leaves_its_answer(self) -> None:
        """That of a signal's handler, which runs where the interpreter comes back from C."""
        self.musterd.agreed = (5, 1, b"drained")
        with muster.init() as gang:
            enter = gang._enter

            def interrupted(handle: Any, n: int) -> None:
                enter(handle, n)
                with self.assertRaisesRegex(muster.MusterError, "in progress on this thread"):
                    gang.step(n + 1)

            gang._enter = interrupted
            self.assertEqual(gang.step(5), (True, False, "drained"))
            self.assertEqual(self.musterd.entered(), (5, 1))

    def test_steps_make_no_system_call(self) -> None:
        """But for the interpreter's memory. The kernel kills a program that makes another; the second one does."""
        code = """
            import ctypes, os, sys, muster

            def rule(code, equal, other, value):
                return code.to_bytes(2, "little") + bytes([equal, other]) + value.to_bytes(4, "little")

            allowed = {"x86_64": (9, 10, 11, 12, 25, 28, 231), "aarch64": (222, 226, 215, 214, 216, 233, 94)}[os.uname().machine]
            rules = [rule(0x20, 0, 0, 0)]  # the number of the call
            rules += [rule(0x15, len(allowed) - i, 0, number) for i, number in enumerate(allowed)]
            rules += [rule(0x06, 0, 0, 0x80000000), rule(0x06, 0, 0, 0x7FFF0000)]  # kill the process; allow
            program = ctypes.create_string_buffer(b"".join(rules))
            pointer = ctypes.addressof(program)
            filter = len(rules).to_bytes(8, "little") + pointer.to_bytes(8, "little")
            gang = muster.init()
            gang.step(0)
            libc = ctypes.CDLL(None)
            libc.prctl(38, 1, 0, 0, 0)
            assert libc.prctl(22, 2, ctypes.create_string_buffer(filter), 0, 0) == 0
            for n in range(1, 20_000):
                gang.step(n)
            if len(sys.argv) > 1:
                gang.committed
            os._exit(0)
        """
        for words, status in (((), 0), (("committed",), -signal.SIGSYS)):
            done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), *words], timeout=60, capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr), (status, ""))
            self.assertEqual(self.musterd.entered()[0], 19_999)

    def test_a_step_in_a_forked_process_is_refused(self) -> None:
        with muster.init() as gang:
            process = os.fork()
            if process == 0:
                try:
                    gang.step(1)
                except muster.MusterError as why:
                    os._exit(0 if "forked" in str(why) else 1)
                os._exit(2)
            self.assertEqual(os.waitpid(process, 0)[1], 0)
            self.assertEqual(self.musterd.entered()[1], 0)

    def test_without_a_checkpoint_there_is_nothing_to_restore(self) -> None:
        with muster.init() as gang:
            self.assertIsNone(gang.restore_step)
            self.assertIsNone(gang.committed)
            self.assertIsNone(gang.restore())
            self.assertIsNone(gang.restore(replicated=True))
            self.assertIsNone(gang.restore_info())
            self.assertIsNone(gang.restore_shard(0))
            self.assertEqual(list(gang.restore_shards()), [])
            self.assertIsNone(gang.slice_info("w"))

    def test_a_checkpoint_that_is_not_there_is_never_taken_for_a_beginning(self) -> None:
        """Neither when the program names it, nor when the generation is to start from it."""

        def look(gang: muster.Gang, step: int | None, error: str) -> None:
            for call in (
                lambda: gang.restore(step),
                lambda: gang.restore(step, replicated=True),
                lambda: gang.restore(step, into={}),
                lambda: gang.restore_info(step),
                lambda: gang.restore_shard(0, step),
                lambda: list(gang.restore_shards(step)),
                lambda: gang.slice_info("w", step),
                lambda: gang.restore_slices({"w": muster.Slice(bytearray(1))}, step),
            ):
                with self.assertRaisesRegex(muster.MusterError, error):
                    call()

        with muster.init() as gang:
            look(gang, 77, "there is no such checkpoint")
        self.musterd.restore_step = 30
        with muster.init() as gang:
            look(gang, None, "what this generation starts from was removed")

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

    def test_counters_and_defaultdicts_come_back_as_they_were(self) -> None:
        state = {"counter": Counter({3: 2, "a": 0}), "lists": defaultdict(list, {"a": [1]}), "none": defaultdict(None, {1: 2})}
        got = self.go_round(state)
        self.assertEqual(repr(got), repr(state))
        self.assertEqual(got["counter"]["missing"], 0)
        got["lists"]["b"].append(2)
        self.assertEqual(got["lists"], {"a": [1], "b": [2]})

    def test_what_would_come_back_as_another_type_is_named_with_what_to_save(self) -> None:
        import numpy

        class Own(dict):  # type: ignore[type-arg]
            pass

        with muster.init() as gang:
            for value, what in (
                (Point(1, 2), r"a Point, which cannot be saved: save its _asdict\(\)"),
                (Colour.RED, "a Colour, which cannot be saved: save its .value"),
                (Text("x"), r"a Text, which cannot be saved: save str\(it\)"),
                (Own(a=1), r"a Own, which cannot be saved: save dict\(it\)"),
                (bytearray(b"x"), r"a bytearray, which cannot be saved: save bytes\(it\)"),
                ({1}, r"a set, which cannot be saved: save sorted\(it\)"),
                (numpy.ma.masked_array([1, 2], [True, False]), "a MaskedArray, which cannot be saved: save its .data and .mask"),
                (numpy.zeros(2).view(numpy.recarray), r"a recarray, which cannot be saved: save numpy.array\(it\)"),
                (defaultdict(lambda: 1), r"a defaultdict of <function .*, which cannot be saved: save dict\(it\)"),
            ):
                with self.assertRaisesRegex(TypeError, r"^'/a/1' is " + what):
                    gang.save({"a": [0, value]}, 1)

    def test_the_states_of_pytorchs_schedulers_come_back_usable(self) -> None:
        import torch
        from torch.optim import lr_scheduler

        def make() -> Any:
            optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
            return optimizer, lr_scheduler.MultiStepLR(optimizer, [2, 2, 3])

        optimizer, scheduler = make()
        optimizer.step()
        scheduler.step()
        restored = self.go_round({"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()})
        self.assertIs(type(restored["scheduler"]["milestones"]), Counter)
        again, again_scheduler = make()
        again.load_state_dict(restored["optimizer"])
        again_scheduler.load_state_dict(restored["scheduler"])
        rates = []
        for one, its in ((optimizer, scheduler), (again, again_scheduler)):
            for _ in range(3):
                one.step()
                its.step()
                rates.append(its.get_last_lr())
        self.assertEqual(rates[:3], rates[3:])

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

        with muster.init() as gang:
            for value in (object(), {1, 2}, numpy.array([object()]), torch.eye(2).to_sparse()):
                with self.assertRaisesRegex(TypeError, "^'/a/1' "):
                    gang.save({"a": [0, value]}, 1)
            gang.save({"a": 1}, 1)  # the step is still free
            gang.wait(1, timeout=10)
            with self.assertRaises(ValueError):
                gang.save({}, -1)

    def test_what_does_not_lie_row_by_row_is_copied_one_after_the_other(self) -> None:
        """A state of such would be in memory once more else."""
        import numpy
        import torch

        array, tensor = numpy.arange(6.0).reshape(2, 3), torch.arange(6.0).reshape(2, 3)
        copies: list[Any] = []
        most = 0

        def counted(make: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any) -> Any:
                nonlocal most
                buffer = make(*arguments)
                copies.append(weakref.ref(buffer.owner))
                most = max(most, sum(copy() is not None for copy in copies))
                return buffer

            return call

        with (
            muster.init() as gang,
            unittest.mock.patch.object(muster.slices, "_array_buffer", counted(muster.slices._array_buffer)),
            unittest.mock.patch.object(muster.slices, "_tensor_buffer", counted(muster.slices._tensor_buffer)),
        ):
            gang.save({"arrays": [array.T] * 5, "tensors": [tensor.T] * 5, "conj": [torch.tensor([1 + 2j]).conj()] * 5}, 10)
            self.assertEqual((len(copies), most), (15, 1))
            gang.wait(timeout=10)
        with muster.init() as gang:
            found = gang.restore(10)
        assert found is not None
        for one in found.state["arrays"]:
            numpy.testing.assert_array_equal(one, array.T)
        for one in found.state["tensors"]:
            self.assertTrue(torch.equal(one, tensor.T))
        self.assertEqual([one.tolist() for one in found.state["conj"]], [[1 - 2j]] * 5)

    def test_a_save_may_be_skipped_while_two_are_on_their_way(self) -> None:
        self.musterd.commit = False
        with muster.init() as gang:
            gang.save("a", 1, block=False)
            second = gang.save("b", 2, block=False)
            with self.assertRaises(muster.Busy):
                gang.save("c", 3, block=False)
            with self.assertRaises(TimeoutError):
                gang.wait(2, timeout=0.01)
            self.assertFalse(second.done())
            with self.assertRaises(muster.TimedOut):
                second.result(timeout=0.01)

    def test_a_save_says_how_it_ends(self) -> None:
        self.musterd.failures[2] = "the pool is full"
        said = io.StringIO()
        with muster.init() as gang, contextlib.redirect_stderr(said):
            first = gang.save("a", 1)
            self.assertIsNone(first.result(timeout=10))
            self.assertEqual((first.step, first.done(), first.exception()), (1, True, None))
            asked = gang.save("b", 2)
            with self.assertRaisesRegex(muster.StoreError, "the checkpoint of step 2 has failed: the pool is full"):
                asked.result(timeout=10)
            self.assertIsInstance(asked.exception(), muster.StoreError)
            last = gang.save("c", 3)
            last.result(timeout=10)
            self.assertEqual(said.getvalue(), "")
            self.assertTrue(asked.done())
        self.assertIsNone(last.result())
        self.assertIsNone(first.exception())

    def test_a_save_that_has_failed_is_told_at_the_next_one_if_nobody_asks(self) -> None:
        self.musterd.failures[1] = "the pool is full"
        said = io.StringIO()
        with muster.init() as gang, contextlib.redirect_stderr(said):
            unheard = gang.save("a", 1)
            while not unheard.done():
                time.sleep(0.001)
            self.assertEqual(said.getvalue(), "")
            for step in range(2, 5):
                gang.save("b", step).result(timeout=10)
            self.assertEqual(said.getvalue(), "muster: rank 1: the checkpoint of step 1 has failed: the pool is full\n")

    def test_a_save_of_a_gang_that_was_closed_is_not_asked_for(self) -> None:
        self.musterd.commit = False
        with muster.init() as gang:
            save = gang.save("a", 1)
        with self.assertRaisesRegex(ValueError, "has been closed"):
            save.result(timeout=10)

    def test_each_error_has_its_class(self) -> None:
        kinds = {kind.code: kind for kind in muster.MusterError.__subclasses__()}
        self.assertEqual(sorted(kinds), list(range(-13, 0)))
        for code, kind in kinds.items():
            self.assertIs(getattr(muster, kind.__name__), kind)
            self.assertIs(type(muster.errors.error(code, "")), kind)
        self.assertIs(type(muster.errors.error(-99, "of a newer library")), muster.MusterError)
        self.assertTrue(issubclass(muster.Invalid, ValueError) and issubclass(muster.NoMemory, MemoryError))

    def test_a_wait_of_a_second_is_said_once_a_minute(self) -> None:
        with muster.init() as gang:
            begin = gang._library.save_begin
            until: float | None = None

            def busy(*arguments: Any) -> None:
                nonlocal until
                until = until or time.monotonic() + 1.1
                if time.monotonic() < until:
                    raise muster.Busy("both staging buffers are still being written")
                begin(*arguments)

            with unittest.mock.patch.object(gang._library, "save_begin", busy):
                said = io.StringIO()
                with contextlib.redirect_stderr(said):
                    for step in (1, 2):
                        until = None
                        gang.save("a", step)
        self.assertRegex(said.getvalue(), r"^muster: rank 1: the save of step 1 waited [0-9.]+ s for a staging buffer: the store .*\n$")

    def test_a_wait_for_want_of_memory_says_which_limit_it_is(self) -> None:
        with muster.init() as gang:
            begin = gang._library.save_begin
            until: float | None = None

            def busy(*arguments: Any) -> None:
                nonlocal until
                until = until or time.monotonic() + 1.1
                if time.monotonic() < until:
                    raise muster.Busy("the staging buffer is still being written, and there is room for one only: the limit")
                begin(*arguments)

            said = io.StringIO()
            with unittest.mock.patch.object(gang._library, "save_begin", busy), contextlib.redirect_stderr(said):
                gang.save("a", 1)
        self.assertRegex(said.getvalue(), r" s for a staging buffer: there is room for one only: the limit\n$")

    def test_a_signal_handler_that_calls_within_a_call_is_told_so_and_the_call_goes_on(self) -> None:
        said: list[str] = []
        with muster.init() as gang:
            add = gang._library.save_add_slice

            def interrupted(*arguments: Any) -> None:
                os.kill(os.getpid(), signal.SIGUSR1)
                add(*arguments)

            def handler(*_: Any) -> None:
                for call in (lambda: gang.save("b", 2), lambda: gang.committed, gang.close):
                    with self.assertRaises(muster.MusterError) as caught:
                        call()
                    said.append(str(caught.exception))

            before = signal.signal(signal.SIGUSR1, handler)
            self.addCleanup(signal.signal, signal.SIGUSR1, before)
            signal.alarm(60)  # for a test that would stand still
            self.addCleanup(signal.alarm, 0)
            with unittest.mock.patch.object(gang._library, "save_add_slice", interrupted):
                gang.save("a", 1)
            gang.wait(1, timeout=10)
            self.assertEqual(gang.restore(1), ("a", 1))
        self.assertEqual(len(said), 3)
        for text in said:
            self.assertRegex(text, "a signal handler .* has made another: set a flag there, and save in the loop")

    def test_a_signal_handler_may_save_where_no_call_is_made(self) -> None:
        with muster.init() as gang:
            before = signal.signal(signal.SIGUSR1, lambda *_: gang.save("b", 2))
            self.addCleanup(signal.signal, signal.SIGUSR1, before)
            os.kill(os.getpid(), signal.SIGUSR1)
            gang.wait(2, timeout=10)

    def test_a_save_that_is_interrupted_before_its_first_entry_leaves_nothing_open(self) -> None:
        with muster.init() as gang:
            for error in (KeyboardInterrupt, MemoryError):
                with unittest.mock.patch.object(gang, "_tell_of_wait", side_effect=error), self.assertRaises(error):
                    gang.save("a", 1)
            with unittest.mock.patch.object(gang._library, "save_commit", side_effect=KeyboardInterrupt):
                with self.assertRaises(KeyboardInterrupt):
                    gang.save("a", 1)
            gang.save("b", 1)
            gang.wait(1, timeout=10)
            self.assertEqual(gang.restore(1), ("b", 1))

    def test_a_stderr_that_cannot_be_written_does_not_end_a_save(self) -> None:
        with muster.init() as gang:
            for step, error in ((1, OSError(errno.ENOSPC, "full")), (2, ValueError("I/O operation on closed file"))):
                stderr = unittest.mock.Mock(**{"write.side_effect": error})
                gang._tell_again = 0.0
                with contextlib.redirect_stderr(stderr):
                    gang._tell_of_wait(step, 2.0, "")
                stderr.write.assert_called()

    def test_there_is_nothing_to_wait_for_when_nothing_was_saved(self) -> None:
        with muster.init() as gang:
            gang.wait()
            gang.wait(timeout=0)
            with self.assertRaises(muster.NotFound):
                gang.wait(3)

    def test_the_packages_example_goes_on_where_it_was_and_ends_with_its_last_step_saved(self) -> None:
        example = textwrap.dedent((muster.__doc__ or "").partition("\n\n")[2].partition("\n\nA save copies")[0])

        class Counts:
            """Stands for a model and its optimizer: one number, how often it was trained."""

            def __init__(self) -> None:
                self.trained = 0

            def state_dict(self) -> dict[str, int]:
                return {"trained": self.trained}

            def load_state_dict(self, state: dict[str, int]) -> None:
                self.trained = state["trained"]

        def run(steps: int) -> tuple[int, list[int]]:
            """Gives how often the model has been trained in all, and the steps of this run's saves."""
            model = Counts()

            def train() -> None:
                model.trained += 1

            before = set(self.musterd.shards)
            names: dict[str, Any] = {"model": model, "optimizer": Counts(), "steps": steps, "train": train}
            exec(example, names)
            names["gang"].close()
            return model.trained, sorted(set(self.musterd.shards) - before)

        self.assertEqual(run(250), (250, [100, 200, 250]))
        self.musterd.restore_step = 200
        self.assertEqual(run(260), (260, [260]))
        self.musterd.restore_step = 260
        self.assertEqual(run(260), (260, []))

    def test_a_second_gang_of_a_member_says_so(self) -> None:
        with muster.init() as gang:
            with self.assertRaisesRegex(muster.MusterError, r"rank 1 is open already: .* use the one .* or close\(\) it first"):
                muster.init()
            gang.step(1)
        muster.init().close()

    def test_a_gang_that_nothing_refers_to_closes_itself(self) -> None:
        gang = muster.init()
        gang.save("a", 1)
        gang.wait(timeout=10)
        del gang
        with muster.init() as gang:
            self.assertEqual(gang.restore(1), ("a", 1))

    def test_a_forked_process_may_drop_its_copy(self) -> None:
        gang: muster.Gang | None = muster.init()
        assert gang is not None
        process = os.fork()
        if process == 0:
            gang = None
            gc.collect()
            os._exit(0)
        self.assertEqual(os.waitpid(process, 0)[1], 0)
        gang.save("a", 1)
        gang.wait(timeout=10)

    def test_a_program_may_end_with_its_gang_open(self) -> None:
        code = "import muster; gang = muster.init(); gang.me = gang; gang.step(1)"
        done = subprocess.run([sys.executable, "-c", code], timeout=30, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def save_states(self, states: list[Any]) -> None:
        """The checkpoint of step 20, by as many members."""
        self.save_as_gang_of(len(states), lambda gang, step: gang.save(states[gang.rank], step))

    def test_a_gang_of_another_size_divides_the_shards_anew(self) -> None:
        self.save_states([{"part": [0, 1]}, {"part": [2, 3]}, {"part": [4]}])
        with muster.init() as gang:
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
        with muster.init() as gang:
            self.assertEqual(gang.restore(replicated=True), ({"weights": 7}, 20))
        self.assertEqual(self.go_round({"weights": 8}), {"weights": 8})

    def test_an_open_restore_is_read_and_closed_while_no_other_thread_calls(self) -> None:
        import numpy

        with muster.init() as gang:
            gang.save(numpy.arange(5), 10)
            gang.wait(timeout=10)
            alone: list[bool] = []

            def seen(function: Callable[..., Any]) -> Callable[..., Any]:
                def call(*arguments: Any) -> Any:
                    alone.append(gang._inside)
                    return function(*arguments)

                return call

            library = gang._library
            c = unittest.mock.Mock(wraps=library._c, muster_restore_get=seen(library._c.muster_restore_get))
            with unittest.mock.patch.object(library, "_c", c), unittest.mock.patch.object(
                library, "restore_close", seen(library.restore_close)
            ):
                found = gang.restore(10)
            assert found is not None
            self.assertEqual(found[0].tolist(), list(range(5)))
            self.assertEqual(alone, [True] * 3)  # the structure, the array, the end

    def test_a_restore_may_end_after_its_gang(self) -> None:
        with muster.init() as gang:
            gang.save([b"a", b"b"], 10)
            gang.wait(timeout=10)
            opened = gang._call(gang._library.restore_open, 10)
        self.assertEqual(gang._read(opened, 10), [b"a", b"b"])

    def test_a_shard_of_another_program_has_no_state(self) -> None:
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
        with muster.init() as gang, self.assertRaisesRegex(muster.MusterError, "step 5 has no state of this member"):
            gang.restore(5)

    def restore_of(self, structure: bytes, name: str = "x", dtype: str = "float32", shape: tuple[int, ...] = (2,)) -> Any:
        """The state of a checkpoint with that structure and 8 bytes of a leaf."""
        leaf = muster.slices.Described(dtype.encode(), 8 // math.prod(shape), shape, (0,) * len(shape), shape, muster.slices.to_save("", muster.Slice(bytes(8))).buffer, 0)
        with muster.init() as gang:
            self.step += 1
            gang._save(self.step, [(name, leaf), *muster.slices.describe([("structure", muster.Slice(structure))])], 0, True)
            gang.wait(timeout=10)
            return gang.restore(self.step)

    def test_structures_that_encode_would_not_write_are_corrupt(self) -> None:
        for structure in (b"", b"{", b'{"a":1,"b":2}', b'{"eval":"1"}', b'{"default":["eval",[]]}', b'{"counter":1}', b'{"tensor":"x"}', b'{"tensor":9}', b"{}",
                          b'{"dict":[[[],1]]}', b'{"array":0}', b'{"tuple":3}', b"[" * 100000, b'{"newest":[1]}'):  # fmt: skip
            with self.assertRaises(muster.Corrupt, msg=structure[:20]):
                self.restore_of(muster.tree.MARK + structure)
        with self.assertRaisesRegex(muster.Corrupt, "unknown format: it begins with b'muster-tree/2"):
            self.restore_of(b"muster-tree/2\n1")
        with self.assertRaisesRegex(muster.Corrupt, "unknown kind 'newest', which a newer version of this package may have"):
            self.restore_of(muster.tree.MARK + b'{"newest":[1]}')

    def test_what_this_machine_lacks_does_not_make_a_checkpoint_corrupt(self) -> None:
        import numpy
        import torch

        tensor, array = muster.tree.MARK + b'{"tensor":["x",null]}', muster.tree.MARK + b'{"array":["x",null]}'
        for structure, name, who in ((tensor, "float6_e1m4", "PyTorch"), (array, "<z8", "numpy")):
            with self.assertRaisesRegex(muster.MusterError, f"'x' is of type '{name}', which {who} .* does not have") as caught:
                self.restore_of(structure, dtype=name)
            self.assertNotIsInstance(caught.exception, muster.Corrupt)
        for structure, name in ((tensor, "load"), (array, "|O")):
            with self.assertRaises(muster.Corrupt):
                self.restore_of(structure, dtype=name)
        with unittest.mock.patch.object(torch, "empty", side_effect=RuntimeError("can't allocate memory")):
            with self.assertRaisesRegex(RuntimeError, "can't allocate"):
                self.restore_of(tensor)
        with unittest.mock.patch.object(numpy, "empty", side_effect=MemoryError), self.assertRaises(MemoryError):
            self.restore_of(array)
        with self.assertRaisesRegex(muster.NotFound, "nobody saved 'x'"):
            self.restore_of(tensor, name="y")
        with self.assertRaisesRegex(muster.MusterError, "'x' was saved by rank . as float32 .8 bytes., not as|float32 .8 bytes"):
            self.restore_of(tensor, shape=(1,))

    def test_what_is_beside_a_restored_state_is_filled_where_it_is(self) -> None:
        import numpy
        import torch

        into = {"w": torch.zeros(4, 3).t(), "a": numpy.zeros((2, 2)), "n": 0, "more": [torch.zeros(2)]}
        with muster.init() as gang:
            saved = {"w": torch.arange(12.0).reshape(3, 4), "a": numpy.ones((2, 2)), "n": 5, "more": [torch.ones(2)], "only": b"x"}
            gang.save(saved, 1)
            gang.wait(timeout=10)
            self.assertEqual(self.musterd.ranges, [])
            state, _ = gang.restore(1, into=into) or ({}, 0)
            self.assertIs(state["w"], into["w"])
            self.assertIs(state["a"], into["a"])
            self.assertTrue(torch.equal(into["w"], saved["w"]))
            self.assertEqual((into["a"].tolist(), state["n"], state["only"]), ([[1, 1], [1, 1]], 5, b"x"))
            self.assertEqual(self.musterd.ranges, [], "all was in this member's own shard")
            with self.assertRaisesRegex(muster.NotFound, "does not have what is to be restored: '/other/x' is missing"):
                gang.restore(1, into={"other": {"x": torch.ones(1)}})

    def test_names_of_leaves_are_unlike_whatever_the_keys_are(self) -> None:
        deep: Any = b"deep"
        for i in range(100):
            deep = {f"a long key {i}": deep}
        state = {"a.b": b"1", "a": {"b": b"2", "/": b"3", "~1": b"4"}, "a/b": b"5", "structure": b"6", "line\n": b"7", "": b"8"}
        state |= {b"key": b"9", (1, b"k"): b"10", "deep": deep}
        self.assertEqual(self.go_round(state), state)
        self.assertEqual(self.go_round(b"root"), b"root")
        with muster.init() as gang:
            with self.assertRaisesRegex(ValueError, "two leaves of the state are called '/a/1'"):
                gang.save({"a": {1: b"x", "1": b"y"}}, 1)
            for name in ("/a", "structure"):
                with self.assertRaisesRegex(ValueError, f"the slice '{name}' is called as a part of the state"):
                    gang.save({"a": b"x"}, 1, slices={name: muster.Slice(b"y")})

    def test_a_structure_that_grows_moves_no_leaf(self) -> None:
        """Chunks of a checkpoint that are as in the one before are not written anew."""
        leaf = bytes(range(256)) * 16
        with muster.init() as gang:
            for step, rate in enumerate((0.1, 0.12345678901234567, 1e-300), 1):
                gang.save({"rate": [rate] * 20, "leaf": leaf}, step)
            gang.wait(timeout=10)
        self.assertEqual({self.musterd.shards[step].index(leaf) for step in (1, 2, 3)}, {64})

    def test_a_default_device_is_no_matter_to_a_restore(self) -> None:
        import torch

        if not hasattr(torch, "set_default_device"):
            self.skipTest("this PyTorch has no default device")
        with muster.init() as gang:
            gang.save({"w": torch.arange(3.0)}, 1)
            gang.wait(timeout=10)
            torch.set_default_device("meta")
            self.addCleanup(torch.set_default_device, "cpu")
            state, _ = gang.restore(1) or ({}, 0)
            self.assertEqual(state["w"].tolist(), [0, 1, 2])
            view = torch.zeros(2, 3, device="cpu").t()[:, 0]
            gang.restore(1, into={"w": view})
            self.assertEqual(view.tolist(), [0, 1, 2])

    def test_a_tensor_without_data_of_its_own_is_named(self) -> None:
        import torch

        class Wrapped(torch.Tensor):
            @staticmethod
            def __new__(cls) -> Any:
                return torch.Tensor._make_wrapper_subclass(cls, (3,))

            @classmethod
            def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                return args[0]

        class Flattened(Wrapped):
            def __tensor_flatten__(self) -> Any:
                raise AssertionError

        with muster.init() as gang:
            for value in (Wrapped(), Flattened()):
                kind = type(value).__name__
                with self.assertRaisesRegex(TypeError, f"'/a/0' is a {kind}, which has its data in other tensors"):
                    gang.save({"a": [value]}, 1)
            gang.save({"a": [torch.ones(3)]}, 1)
            gang.wait(timeout=10)
            with self.assertRaisesRegex(TypeError, "'/a/0' is a Flattened, which has its data in other tensors"):
                gang.restore(1, into={"a": [Flattened()]})

    def test_errors_go_from_process_to_process(self) -> None:
        for code in (-99, *range(-13, 0)):
            error = muster.errors.error(code, "why it failed")
            other = pickle.loads(pickle.dumps(error))
            self.assertEqual((type(other), other.code, str(other)), (type(error), code, "why it failed"))
        with muster.init() as gang, self.assertRaisesRegex(TypeError, "a Gang cannot be brought to another process"):
            pickle.dumps(gang)

    def test_importing_it_imports_neither_torch_nor_numpy(self) -> None:
        code = "import muster, sys; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
        subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


if __name__ == "__main__":
    unittest.main()
