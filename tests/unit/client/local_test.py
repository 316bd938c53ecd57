#!/usr/bin/python3
"""A Gang without Muster: muster.testing, and muster.init(fallback="local"). No libmuster is loaded."""

import concurrent.futures
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import unittest
import unittest.mock
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy

import muster
from muster import _library, _local
from muster.testing import ask, local_gang

STATE: dict[str, Any] = {
    "model": {"0.weight": numpy.arange(12, dtype=numpy.float32).reshape(3, 4), "a/b": numpy.int64(7)},
    "losses": [0.5, float("inf")],
    "raw": b"\0\1",
    "none": None,
}


class LocalCase(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory(prefix="muster-test-")
        self.addCleanup(directory.cleanup)
        self.place = Path(directory.name) / "checkpoints"
        no_library = unittest.mock.patch.object(_library, "Library", side_effect=AssertionError("libmuster is loaded"))
        no_library.start()
        self.addCleanup(no_library.stop)
        for name in ("MUSTER_GANG", "RANK", "WORLD_SIZE"):
            value = os.environ.pop(name, None)
            self.addCleanup(os.environ.pop if value is None else os.environ.__setitem__, name, value)

    @contextlib.contextmanager
    def gang_of(self, members: int) -> Iterator[list[muster.Gang]]:
        with contextlib.ExitStack() as stack:
            yield [stack.enter_context(local_gang(self.place, rank=rank, world_size=members)) for rank in range(members)]


class Checkpoints(LocalCase):
    def test_a_state_comes_back_as_it_was(self) -> None:
        with local_gang(self.place) as gang:
            self.assertEqual((gang.rank, gang.world_size, gang.restore_step, gang.committed), (0, 1, None, None))
            self.assertIsNone(gang.restore())
            save = gang.save(STATE, 10)
            self.assertTrue(save.done())
            gang.wait()
            self.assertEqual((gang.committed, gang.restore_step), (10, None))
        with local_gang(self.place) as gang:
            self.assertEqual(gang.restore_step, 10)
            found = gang.restore()
            assert found is not None
            state, step = found
            self.assertEqual(step, 10)
            numpy.testing.assert_array_equal(state["model"].pop("0.weight"), STATE["model"]["0.weight"])
            self.assertEqual({**state, "model": {**state["model"]}}, {**STATE, "model": {"a/b": 7}})
            into = {"model": {"0.weight": numpy.zeros((3, 4), numpy.float32)}}
            gang.restore(into=into)
            numpy.testing.assert_array_equal(into["model"]["0.weight"], STATE["model"]["0.weight"])
            with self.assertRaisesRegex(muster.NotFound, "bias"):
                gang.restore(into={"model": {"bias": numpy.zeros(3)}})
            with self.assertRaisesRegex(muster.NotFound, "step 11"):
                gang.restore(11)

    def test_a_checkpoint_counts_when_all_members_have_saved(self) -> None:
        with self.gang_of(2) as (first, second):
            save = first.save({"rank": 0}, 5)
            self.assertFalse(save.done())
            with self.assertRaisesRegex(muster.TimedOut, "other members' shards are missing"):
                save.result(timeout=0.01)
            self.assertIsNone(first.committed)
            second.save({"rank": 1}, 5).result(timeout=10)
            save.result(timeout=10)
            first.save({"rank": 0}, 6)  # never by the other one
        with self.gang_of(2) as gangs:
            for rank, gang in enumerate(gangs):
                self.assertEqual(gang.restore(), ({"rank": rank}, 5))
                self.assertEqual(list(gang.restore_shards()), [{"rank": 0}, {"rank": 1}])

    def test_a_step_that_a_member_skips_has_failed_once_two_newer_are_there(self) -> None:
        with self.gang_of(2) as (first, second):
            skipped = first.save("a", 1)
            for step in (2, 3):
                first.save("a", step)
                second.save("b", step).result(timeout=10)
            with self.assertRaisesRegex(muster.StoreError, "other members have not saved it"):
                skipped.result(timeout=10)

    def test_a_gang_of_another_size_restores_by_name(self) -> None:
        whole = numpy.arange(7 * 3, dtype=numpy.float64).reshape(7, 3)

        def rows(first: int, last: int, data: Any = None) -> dict[str, Any]:
            data = numpy.zeros((last - first, 3)) if data is None else data
            return {"w": muster.Slice(data, (7, 3), (first, 0))}

        with self.gang_of(3) as gangs:
            for gang, (first, last) in zip(gangs, ((0, 3), (2, 5), (5, 7))):
                gang.save({"rank": gang.rank}, 1, slices=rows(first, last, whole[first:last]))
        with self.gang_of(2) as gangs:
            with self.assertRaisesRegex(muster.Invalid, "3 members"):
                gangs[0].restore()
            for gang, (first, last) in zip(gangs, ((0, 4), (1, 6))):
                part = rows(first, last)
                gang.restore_slices(part)
                numpy.testing.assert_array_equal(part["w"].data, whole[first:last])
                self.assertEqual(gang.restore(replicated=True), ({"rank": gang.rank}, 1))
                columns = {"w": muster.Slice(numpy.zeros((7, 1)), (7, 3), (0, 1))}
                gang.restore_slices(columns)
                numpy.testing.assert_array_equal(columns["w"].data, whole[:, 1:2])
            self.assertEqual(gangs[0].slice_info("w"), muster.SliceInfo("float64", 8, (7, 3)))
            self.assertIsNone(gangs[0].slice_info("v"))
            with self.assertRaisesRegex(muster.Invalid, "'w' is"):
                gangs[0].restore_slices({"w": muster.Slice(numpy.zeros(7))})

    def test_what_not_all_have_of_a_tensor_is_not_found(self) -> None:
        with local_gang(self.place) as gang:
            gang.save_slices({"w": muster.Slice(numpy.ones((2, 2)), (4, 2), (1, 0))}, 1)
            part = {"w": muster.Slice(numpy.zeros((2, 2)), (4, 2), (2, 0))}
        with local_gang(self.place) as gang, self.assertRaisesRegex(muster.NotFound, "not all of it"):
            gang.restore_slices(part)

    def test_steps_go_up_and_the_newest_three_stay(self) -> None:
        with local_gang(self.place) as gang:
            for step in (1, 2, 3, 10):
                gang.save(step, step)
            with self.assertRaisesRegex(muster.Invalid, "step 9 is not above step 10"):
                gang.save(9, 9)
            self.assertEqual(sorted(os.listdir(self.place)), ["step-10", "step-2", "step-3"])
            with self.assertRaisesRegex(muster.NotFound, "has not saved step 11"):
                gang.wait(11)
            with self.assertRaisesRegex(muster.Invalid, "step 10 is not above step 10"):
                gang.save(10, 10)
        with local_gang(self.place) as gang:
            with self.assertRaisesRegex(muster.Invalid, "step 10 is not above step 10, which .* had when"):
                gang.save(10, 10)
            for step in range(11, 16):
                gang.save(step, numpy.int64(step))
            self.assertEqual(sorted(os.listdir(self.place)), ["step-10", "step-13", "step-14", "step-15"])
            self.assertEqual(gang.restore(), (10, 10))

    def test_what_is_left_of_a_run_that_was_killed_is_of_no_checkpoint(self) -> None:
        with self.gang_of(2) as (first, second):
            first.save({"run": 1}, 5)
            second.save({"run": 1}, 5)
            second.save({"run": 1}, 10)  # and is killed before the other one has
        with self.gang_of(2) as (first, second):
            self.assertEqual((first.restore_step, second.restore_step), (5, 5))
            save = first.save({"run": 2}, 10)
            self.assertFalse(save.done())
            second.save({"run": 2}, 10)
            save.result(timeout=10)
        with self.gang_of(2) as gangs:
            self.assertEqual([gang.restore() for gang in gangs], [({"run": 2}, 10)] * 2)

    def test_a_save_may_be_made_again_until_it_is_committed(self) -> None:
        with self.gang_of(2) as (first, second):
            for _ in range(2):
                first.save("a", 1)
            second.save("b", 1).result(timeout=10)
            for gang in (first, second):
                with self.assertRaisesRegex(muster.Invalid, "step 1 is not above step 1"):
                    gang.save("c", 1)

    def test_saves_of_several_threads_come_one_after_another(self) -> None:
        copying, go_on = threading.Event(), threading.Event()

        def parts() -> Iterator[tuple[str, muster.Slice]]:
            yield "a", muster.Slice(b"a")
            copying.set()
            self.assertTrue(go_on.wait(60))
            yield "b", muster.Slice(b"b")

        with local_gang(self.place) as gang, concurrent.futures.ThreadPoolExecutor() as threads:
            first = threads.submit(gang.save_slices, parts(), 1)
            self.assertTrue(copying.wait(60))
            with self.assertRaisesRegex(muster.Busy, "another thread's save"):
                gang.save(STATE, 2, block=False)
            # As a signal's handler does that has come within a call, for which the other thread's save waits.
            with self.assertRaisesRegex(muster.Invalid, "has made another"):
                gang._locked(gang.save, STATE, 2)
            second = threads.submit(gang.save, STATE, 2)
            go_on.set()
            for save in (first, second):
                save.result(60).result(60)
            self.assertEqual(gang.committed, 2)

    def test_files_of_others_stay(self) -> None:
        with local_gang(self.place) as gang:
            gang.save(1, 1)
            (self.place / "step-1" / "notes").touch()
            (self.place / "step-2").touch()
            (self.place / "step-3").mkdir()
            for step in (4, 5, 6, 7):
                gang.save(step, step)
            self.assertEqual(os.listdir(self.place / "step-1"), ["notes"])
            self.assertTrue((self.place / "step-2").is_file() and (self.place / "step-3").is_dir())

    def test_what_libmuster_refuses_is_refused(self) -> None:
        with local_gang(self.place) as gang:
            with self.assertRaisesRegex(ValueError, "-1 is no step"):
                gang.save(1, -1)
            with self.assertRaises(TypeError):
                gang.save(1, 1.0)  # type: ignore[arg-type]
            for name, part, why in (
                ("w", muster.Slice(numpy.zeros(2), (5,), (4,)), "goes beyond its global shape"),
                ("a\nb", muster.Slice(b""), "control characters"),
                ("", muster.Slice(b""), "is no name"),
                ("x" * 256, muster.Slice(b""), "is no name"),
            ):
                with self.assertRaisesRegex(ValueError, why):
                    gang.save_slices({name: part}, 1)
            self.assertEqual(os.listdir(self.place), [])
            gang.save(1, 1)
            with self.assertRaisesRegex(muster.Invalid, "9 is no rank"):
                gang.restore_slices({"w": muster.Slice(numpy.zeros(2), first_rank=9)}, 1)

    def test_a_member_takes_what_the_one_in_its_place_has(self) -> None:
        with self.gang_of(4) as gangs:
            for gang in gangs:
                gang.save({"rank": gang.rank, "own": numpy.zeros(gang.rank)}, 1)
        for members, expected in ((2, [0, 2]), (8, [0, 0, 1, 1, 2, 2, 3, 3]), (1, [0])):
            with self.gang_of(members) as gangs:
                found = [gang.restore(replicated=True) for gang in gangs]
                self.assertEqual([(state.state["rank"], len(state.state["own"])) for state in found if state], [(rank, rank) for rank in expected])

    def test_a_name_may_look_like_a_part_of_another(self) -> None:
        with local_gang(self.place) as gang:
            gang.save({"w#1": b"one", "w": b"whole", "w#2": b"two"}, 1, slices={"s": [muster.Slice(numpy.ones(1), (2,), (i,)) for i in (0, 1)]})
        with local_gang(self.place) as gang:
            self.assertEqual(gang.restore(), ({"w#1": b"one", "w": b"whole", "w#2": b"two"}, 1))
            whole = numpy.zeros(2)
            gang.restore_slices({"s": muster.Slice(whole)})
            self.assertEqual(whole.tolist(), [1, 1])

    def test_a_file_that_was_cut_off_is_corrupt_and_named(self) -> None:
        with local_gang(self.place) as gang:
            gang.save(STATE, 1)
        (file,) = self.place.glob("step-1/*")
        whole = file.read_bytes()
        for size in (0, 5, 20, len(whole) - 1):
            file.write_bytes(whole[:size])
            with local_gang(self.place) as gang, self.assertRaisesRegex(muster.Corrupt, file.name):
                gang.restore()
        for before, after, why in (
            (b"4 0 3,4 0,0 3,4", b"4 0 3,5 0,0 3,5", "no slice of so many bytes"),
            (b'\\"version\\": 1', b'\\"version\\": 2', "version"),
        ):
            self.assertIn(before, whole)
            file.write_bytes(whole.replace(before, after))
            with local_gang(self.place) as gang, self.assertRaisesRegex(muster.Corrupt, why):
                gang.restore()
        file.write_bytes(whole.replace(b'entries', b'entriex'))
        with local_gang(self.place) as gang, self.assertRaisesRegex(muster.Corrupt, "entries"):
            gang.restore()

    def test_what_cannot_be_written_is_said_and_leaves_nothing(self) -> None:
        with local_gang(self.place) as gang:
            with unittest.mock.patch("os.fsync", side_effect=OSError(28, "No space left on device")):
                with self.assertRaisesRegex(muster.StoreError, "No space left on device"):
                    gang.save(STATE, 1)
            self.assertEqual(os.listdir(self.place / "step-1"), [])
            gang.save(STATE, 1).result(timeout=10)

    def test_the_files_are_safetensors(self) -> None:
        with local_gang(self.place) as gang:
            gang.save(STATE, 1)
        (file,) = self.place.glob("step-1/*")
        self.assertEqual(file.name, "rank00000-of-00001.safetensors")
        content = file.read_bytes()
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        tensor = header["model.0.weight"]
        begin, end = tensor.pop("data_offsets")
        self.assertEqual(tensor, {"dtype": "F32", "shape": [3, 4]})
        self.assertEqual(content[8 + length + begin : 8 + length + end], STATE["model"]["0.weight"].tobytes())
        self.assertEqual(json.loads(header["__metadata__"]["muster"])["world_size"], 1)


class Steps(LocalCase):
    def test_a_step_has_no_wish_until_a_test_asks(self) -> None:
        with local_gang(self.place) as gang:
            self.assertEqual(gang.step(1), (False, False, None))
            ask(gang, save=True, exit=True, reason="the time is over")
            self.assertEqual(gang.step(1), (False, False, None))
            self.assertEqual(gang.step(2), (True, True, "the time is over"))
            self.assertEqual(gang.step(2), (True, True, "the time is over"))
            self.assertEqual(gang.step(3), (False, False, None))
            with self.assertRaises(ValueError):
                gang.step(-1)

    def test_members_exchange_values(self) -> None:
        for run in range(3):  # as a gang that was started again, and as one of other processes
            if run == 2:
                _local._openings.clear()
            with self.gang_of(3) as gangs:
                with self.assertRaisesRegex(muster.TimedOut, "nothing from rank 1, 2"):
                    gangs[0].exchange("where-are-you?", b"before", timeout=0)
                values: list[Any] = [None] * 3

                def exchange(gang: muster.Gang) -> None:
                    values[gang.rank] = gang.exchange("where are you?".replace(" ", "-"), b"%d" % gang.rank, timeout=30)

                threads = [threading.Thread(target=exchange, args=(gang,)) for gang in gangs]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                self.assertEqual(values, [[b"before", b"1", b"2"]] * 3)
                with self.assertRaisesRegex(muster.TimedOut, "nothing from rank 1, 2"):
                    gangs[0].exchange("alone", b"", timeout=0.01)
                with self.assertRaisesRegex(muster.Invalid, "used before"):
                    gangs[0].exchange("where-are-you?", b"")
                with self.assertRaises(muster.TooLarge):
                    gangs[0].exchange("large", bytes(4097))


class Init(LocalCase):
    def test_outside_of_a_gang_it_is_local_if_the_program_says_so(self) -> None:
        self.assertFalse(muster.in_gang())
        with muster.init(fallback="local") as gang:
            self.assertEqual((gang.rank, gang.world_size, gang.restore()), (0, 1, None))
            gang.save({"a": 1}, 1).result(timeout=10)
            directory = gang._library._directory  # type: ignore[union-attr]
            self.assertTrue(directory.is_dir())
        self.assertFalse(directory.exists())

    def test_the_environment_says_which_member_it_is(self) -> None:
        os.environ.update(RANK="1", WORLD_SIZE="2")
        with muster.init(fallback="local", directory=self.place) as gang:
            self.assertEqual((gang.rank, gang.world_size), (1, 2))
        with self.assertRaisesRegex(ValueError, "one of 2 members: give init a directory"):
            muster.init(fallback="local")
        for rank, world_size in (("2", "2"), ("-1", "2"), ("0", "zero"), ("", "1")):
            os.environ.update(RANK=rank, WORLD_SIZE=world_size)
            with self.assertRaises(ValueError):
                muster.init(fallback="local", directory=self.place)

    def test_in_a_gang_it_is_the_gangs(self) -> None:
        os.environ["MUSTER_GANG"] = "7.0"
        self.assertTrue(muster.in_gang())
        with self.assertRaisesRegex(AssertionError, "libmuster is loaded"):
            muster.init(fallback="local", directory=self.place)

    def test_a_word_that_is_none_is_refused(self) -> None:
        with self.assertRaisesRegex(ValueError, "'locall'"):
            muster.init(fallback="locall")  # type: ignore[arg-type]

    def test_ask_is_for_local_gangs(self) -> None:
        with self.assertRaisesRegex(ValueError, "Muster's"):
            ask(unittest.mock.Mock(_library=None), save=True)

    def test_processes_of_one_launcher_are_a_gang(self) -> None:
        code = """
import sys, muster
gang = muster.init(fallback="local", directory=sys.argv[1])
values = gang.exchange("hello", b"%d" % gang.rank, timeout=60)
gang.save({"values": values}, 1)
gang.wait(timeout=60)
print(len(values))
"""
        environment = {**os.environ, "MUSTER_LIBRARY": "/nowhere/libmuster.so.0", "WORLD_SIZE": "2"}
        members = [
            subprocess.Popen([sys.executable, "-c", code, self.place], env={**environment, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
            for rank in range(2)
        ]
        try:
            self.assertEqual([member.communicate(timeout=90)[0] for member in members], ["2\n"] * 2)
        finally:
            for member in members:
                member.kill()
                member.communicate()
        with local_gang(self.place, rank=1, world_size=2) as gang:
            self.assertEqual(gang.restore(), ({"values": [b"0", b"1"]}, 1))


if __name__ == "__main__":
    unittest.main()
