#!/usr/bin/env python3
"""muster.torch in process groups: what ranks save together comes back, and what fails on one of them fails on all.

The build's python folder must be in PYTHONPATH, and torch 2.4 or newer must be there.
"""

import contextlib
import io
import time
import unittest
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import muster
import muster.torch
import torch
from ranks_rig import RanksCase
from torch.distributed import _functional_collectives as functional
from torch.distributed import checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

SOON = 5.0  # seconds, in which an error of one rank is to be known to all


def numbers(*shape: int) -> torch.Tensor:
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape)


def placed(whole: torch.Tensor, *placements: Any, mesh: tuple[int, ...] | None = None) -> DTensor:
    shape = mesh or (torch.distributed.get_world_size(),)
    return distribute_tensor(whole, init_device_mesh("cpu", shape), placements)


def commit(gang: muster.Gang, state: Any, step: int = 1) -> None:
    muster.torch.save(gang, state, step)
    gang.wait(step, timeout=10)


class PlainTest(RanksCase):
    ranks = 2

    def test_what_each_rank_alone_has_is_saved_by_it(self) -> None:
        """As with a pipeline's or experts' parallelism: names differ by rank."""

        def save(gang: muster.Gang) -> list[Any]:
            model = {"all": numbers(3), f"only{gang.rank}": torch.full((2,), float(gang.rank))}
            muster.torch.save(gang, {"model": model}, 1, replicated=True)
            gang.wait(1, timeout=10)
            into = {"model": {name: torch.zeros_like(tensor) for name, tensor in model.items()}}
            return [muster.torch.load(gang, into, 1), muster.torch.load(gang, step=1)]

        for rank, loads in enumerate(self.good(save)):
            for state, _ in loads:
                self.assertEqual(state["model"][f"only{rank}"].tolist(), [rank, rank])
                self.assertEqual(state["model"]["all"].tolist(), [0, 1, 2])
        self.gang_of(1)
        into = {"model": {"all": torch.zeros(3), "only0": torch.ones(2), "only1": torch.zeros(2)}}
        ((state, _),) = self.good(lambda gang: muster.torch.load(gang, into))
        self.assertEqual({name: t.tolist() for name, t in state["model"].items()},
                         {"all": [0, 1, 2], "only0": [0, 0], "only1": [1, 1]})  # fmt: skip

    def test_what_all_have_alike_is_saved_once_and_what_differs_by_each(self) -> None:
        def save(gang: muster.Gang) -> Any:
            state = {"w": numbers(5), "empty": torch.empty(0, 2), "rng": torch.full((4,), gang.rank, dtype=torch.uint8), "rank": gang.rank}
            # What differs by one bit, wherever it is; and what does not lie at a multiple of 8 bytes.
            state |= {f"last{size}": torch.zeros(size) for size in (1, 1 << 14, 3 << 14, (3 << 14) + 5)} | {"odd": numbers(1 << 15)[1:]}
            state["single"] = numbers(15)[::8][1:]  # of one element, with a stride
            for name, tensor in state.items():
                if name.startswith("last"):
                    tensor[-1] = gang.rank
            muster.torch.save(gang, state, 1, replicated=True)
            gang.wait(1, timeout=10)
            return muster.torch.load(gang, step=1)

        for rank, (state, _) in enumerate(self.good(save)):
            self.assertEqual((state["w"].tolist(), state["rng"].tolist(), state["rank"]), ([0, 1, 2, 3, 4], [rank] * 4, rank))
            self.assertEqual(state["empty"].shape, (0, 2))
            self.assertEqual([tensor[-1] for name, tensor in state.items() if name.startswith("last")], [rank] * 4)
            self.assertTrue(torch.equal(state["odd"], numbers(1 << 15)[1:]))
        shards = [musterd.shards[1] for musterd in self.musterds]
        for name in (b"/w", b"/odd", b"/empty", b"/single"):
            self.assertEqual(sum(shard.count(name + b"muster-slice/1") for shard in shards), 1)
        self.gang_of(3)
        for state, _ in self.good(lambda gang: muster.torch.load(gang)):
            self.assertEqual(state["w"].tolist(), [0, 1, 2, 3, 4])

    def test_one_byte_that_differs_anywhere_is_seen(self) -> None:
        """Of sizes around those of rows and pieces, at offsets that no word has."""

        def save(gang: muster.Gang) -> Any:
            random = torch.Generator().manual_seed(7)
            state = {}
            for number, size in enumerate((1, 3, 4, 5, 1 << 18, (1 << 18) + 1, (1 << 20) - 3, 1 << 20, (1 << 20) + 7, 3_000_001)):
                memory = torch.randint(0, 256, (size + 8,), generator=random, dtype=torch.uint8)
                offset, at = number % 4, int(torch.randint(0, size, (1,), generator=random))
                tensor = memory[offset : offset + size]
                tensor[at] += gang.rank
                state[f"t{number}"] = tensor
            # Two signs are others: what changes both by the same highest bit must not cancel out.
            signs = torch.ones(1000)
            signs[[3, 700]] *= -1 if gang.rank else 1
            muster.torch.save(gang, state | {"signs": signs, "same": torch.ones(1 << 19)}, 1, replicated=True)
            gang.wait(1, timeout=30)
            found, _ = muster.torch.load(gang, step=1)
            self.assertTrue(all(torch.equal(found[name], tensor) for name, tensor in state.items()))
            self.assertTrue(torch.equal(found["signs"], signs))
            with_digests = muster.torch._together._digest
            return {name: with_digests(tensor) for name, tensor in (state | {"signs": signs, "same": torch.ones(1 << 19)}).items()}

        one, other = self.good(save)
        self.assertEqual([name for name in one if one[name] == other[name]], ["same"])

    def test_who_has_another_one_than_most_is_named_once(self) -> None:
        every = [{"/w": ("a", 4), "/rng": (str(rank), 4)} for rank in range(4)]
        every[2]["/w"] = ("b", 4)
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            for rank in (0, 1, 0):
                muster.torch._together._tell_of_others(mock.Mock(rank=rank), every)
        self.assertEqual(said.getvalue(), "muster: /w is not the same on all members (rank 2), so each saves its own\n")

    def test_a_load_names_all_that_is_not_as_in_the_checkpoint_and_fills_nothing(self) -> None:
        saved = {"w": numbers(3), "layers": [numbers(2), numbers(2)], "half": torch.ones(2).half(), "n": 3}
        self.good(lambda gang: commit(gang, saved))

        cases: list[tuple[Callable[[dict[str, Any]], Any], type, str]] = [
            (lambda into: into.update(new=torch.zeros(1)), muster.NotFound, "'/new' is missing"),
            (lambda into: into.update(new=torch.zeros(0)), muster.NotFound, "'/new' is missing"),
            (lambda into: into.update(epoch=None), muster.NotFound, "'/epoch' is missing"),
            (lambda into: into["layers"].append(torch.zeros(2)), muster.NotFound, "'/layers/2' is missing"),
            (lambda into: into["layers"].pop(), muster.NotFound, "'/layers' has 2 items in the checkpoint, 1 here"),
            (lambda into: into.update(half=torch.zeros(2)), muster.Invalid,
             "'/half' is float16 of shape (2,) in the checkpoint, float32 of shape (2,) here"),
            (lambda into: into.update(half=torch.zeros(3).half()), muster.Invalid, "float16 of shape (3,) here"),
            (lambda into: into.update(n=torch.zeros(1)), muster.Invalid, "'/n' is a value in the checkpoint, a Tensor here"),
            (lambda into: into.update(layers={"0": 1}), muster.Invalid, "'/layers' is a list in the checkpoint, a dict here"),
            (lambda into: into.update(half=torch.zeros(2, device="meta").half()), ValueError,
             "'/half' cannot be restored into a tensor on the meta"),
        ]  # fmt: skip

        def load(gang: muster.Gang) -> list[Any]:
            said = []
            for change, _, _ in cases:
                into = {"w": torch.full((3,), -7.0), "layers": [torch.zeros(2), torch.zeros(2)], "half": torch.zeros(2).half()}
                change(into)
                try:
                    muster.torch.load(gang, into, 1)
                    said.append((None, "no error", []))
                except (muster.MusterError, ValueError) as error:
                    said.append((type(error), str(error), into["w"].tolist()))
            return said

        for said in self.good(load):
            for (_, kind, why), (got, text, w) in zip(cases, said):
                self.assertIs(got, kind, text)
                self.assertIn(why, text)
                self.assertEqual(w, [-7] * 3, why)

        def loosely(gang: muster.Gang) -> Any:
            into = {"w": torch.zeros(3), "new": torch.full((1,), -7.0), "epoch": 4, "layers": [torch.zeros(2)]}
            return muster.torch.load(gang, into, 1, strict=False)

        for state, _ in self.good(loosely):
            self.assertEqual((state["w"].tolist(), state["new"].tolist(), state["epoch"]), ([0, 1, 2], [-7], 4))
            self.assertEqual([layer.tolist() for layer in state["layers"]], [[0, 1]] * 2)

    def test_a_step_that_is_not_there_is_named(self) -> None:
        def look(gang: muster.Gang) -> list[Any]:
            said: list[Any] = [muster.torch.load(gang), gang.restore()]
            for call in (muster.torch.load, muster.Gang.restore):
                try:
                    call(gang, step=77)
                except muster.NotFound:
                    said.append("not found")
            return said

        self.assertEqual(self.good(look), [[None, None, "not found", "not found"]] * 2)

    def test_a_step_that_failed_on_one_rank_may_be_saved_again(self) -> None:
        self.musterds[1].max_shard_bytes = 1 << 20

        def save(gang: muster.Gang) -> Any:
            try:
                muster.torch.save(gang, {"w": torch.zeros(1 << 20 if gang.rank == 1 else 1)}, 1)
            except muster.TooLarge as error:
                said = str(error)
            muster.torch.save(gang, {"w": torch.ones(2)}, 1)
            gang.wait(1, timeout=10)
            return said, muster.torch.load(gang, step=1)

        for said, (state, _) in self.good(save):
            self.assertIn("above musterd's limit", said)
            self.assertEqual(state["w"].tolist(), [1, 1])

    def test_the_process_group_must_be_the_gangs(self) -> None:
        for musterd in self.musterds:
            musterd.world_size = 3
        for error in self.run_ranks(lambda gang: muster.torch.save(gang, {}, 1)):
            self.assertRegex(str(error), "rank . of 3 in the gang, rank . of 2 in torch's process group")


class DistributedTensorTest(RanksCase):
    ranks = 4

    def go_round(self, *rounds: tuple[Callable[[], DTensor], Callable[[], Any], torch.Tensor]) -> None:
        """Saves what the first of each makes, as a step of its own, and loads it into what the second makes, and as a whole."""

        def save(gang: muster.Gang) -> list[Any]:
            same = []
            for step, (make, load, whole) in enumerate(rounds):
                commit(gang, {"t": make()}, step)
                into = load()
                muster.torch.load(gang, {"t": into}, step)
                same.append(torch.equal(into.full_tensor() if isinstance(into, DTensor) else into, whole))
                found = muster.torch.load(gang, step=step)
                same.append(found is not None and torch.equal(found[0]["t"], whole))
            return same

        self.assertEqual(self.good(save), [[True] * 2 * len(rounds)] * self.ranks)

    def shards(self, step: int) -> int:
        """How many members have saved a part."""
        return sum(b"/tmuster-slice/1" in musterd.shards[step] for musterd in self.musterds)

    def test_shards_of_any_placement_are_loaded_in_any_other(self) -> None:
        rounds = []
        for rows in (8, 5, 2):
            whole, zeros = numbers(rows, 6), torch.zeros(rows, 6)
            rounds += [
                (partial(placed, whole, Shard(0)), partial(placed, zeros, Shard(1)), whole),
                (partial(placed, whole, Shard(1), Shard(0), mesh=(2, 2)), partial(torch.zeros, rows, 6), whole),
                (partial(placed, whole, Shard(0), Shard(0), mesh=(2, 2)), partial(placed, zeros, Replicate()), whole),
            ]
        self.go_round(*rounds)

    def test_of_replicas_one_is_saved(self) -> None:
        whole = numbers(6, 4)
        placements = ((Shard(0), Replicate()), (Replicate(), Shard(1)), (Replicate(), Replicate()))
        self.go_round(*((partial(placed, whole, *one, mesh=(2, 2)), partial(torch.zeros, 6, 4), whole) for one in placements))
        self.assertEqual([self.shards(step) for step in range(3)], [2, 2, 1])

        def save(gang: muster.Gang) -> None:
            gang.save({f"t{i}": placed(whole + i, Replicate()) for i in range(16)}, 9)
            gang.wait(9, timeout=10)

        self.good(save)
        counts = [musterd.shards[9].count(b"muster-slice/1 float32") for musterd in self.musterds]
        self.assertEqual(sum(counts), 16)
        self.assertGreater(sum(count > 0 for count in counts), 1, "not all are saved by one")

    def test_fsdp_with_tensor_parallelism_divides_from_right_to_left_also_unevenly(self) -> None:
        def make(whole: torch.Tensor) -> DTensor:
            """As FSDP2 does: what tensor parallelism has left is divided."""
            mesh = init_device_mesh("cpu", (2, 2))
            dp, tp = mesh.get_coordinate()
            part = whole.chunk(2)[tp] if tp < len(whole.chunk(2)) else whole[:0]
            local = part.chunk(2)[dp] if dp < len(part.chunk(2)) else part[:0]
            placements = (_StridedShard(0, split_factor=2), Shard(0))
            return DTensor.from_local(local, mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride())

        wholes = [numbers(rows, 2) for rows in (8, 9, 5, 3)]
        self.go_round(*((partial(make, one), partial(placed, torch.zeros_like(one), Shard(0)), one) for one in wholes))

    def test_fsdp_may_give_what_has_no_elements_any_shape(self) -> None:
        class Model(torch.nn.Module):
            def __init__(self, fill: float) -> None:
                super().__init__()
                for i, shape in enumerate(((3, 2), (2, 1, 3), (1,), (2, 0))):
                    self.register_parameter(f"p{i}", torch.nn.Parameter(torch.full(shape, fill)))

        def save(gang: muster.Gang) -> Any:
            model, other = (fully_shard(Model(fill), mesh=init_device_mesh("cpu", (4,))) for fill in (1.0, 2.0))
            commit(gang, model.state_dict(), 1)
            dcp.save(model.state_dict(), storage_writer=muster.torch.StorageWriter(gang, 2))
            gang.wait(2, timeout=10)
            loaded = []
            for load in (
                lambda state: muster.torch.load(gang, state, 1),
                lambda state: dcp.load(state, storage_reader=muster.torch.StorageReader(gang, 2)),
            ):
                torch.nn.init.constant_(other.p0, 2)
                load(other.state_dict())
                loaded.append([p.full_tensor().unique().tolist() for p in other.parameters()])
            return loaded

        self.assertEqual(self.good(save), [[[[1], [1], [1], []]] * 2] * 4)

    def test_a_part_that_is_no_box_of_the_whole_is_refused_on_all_ranks(self) -> None:
        def strided() -> DTensor:
            return placed(numbers(8, 2), Shard(0), _StridedShard(0, split_factor=2), mesh=(2, 2))

        def wrong() -> DTensor:
            mesh = init_device_mesh("cpu", (4,))
            local = torch.zeros(3 if mesh.get_rank() == 2 else 2, 2)
            return DTensor.from_local(local, mesh, (Shard(0),), run_check=False, shape=torch.Size((8, 2)), stride=(2, 1))

        self.good(lambda gang: commit(gang, {"t": torch.zeros(8, 2)}))
        for make in (strided, wrong):
            for use in (lambda gang: muster.torch.save(gang, {"t": make()}, 2), lambda gang: muster.torch.load(gang, {"t": make()}, 1)):
                for error in self.run_ranks(use):
                    self.assertRegex(str(error), "'/t' is a DTensor of shape .* that is no one box of the whole")
        for musterd in self.musterds:
            self.assertEqual(list(musterd.shards), [1])

    def test_gang_save_and_restore_know_distributed_tensors(self) -> None:
        whole = numbers(6, 4)

        def save(gang: muster.Gang) -> Any:
            tensor = placed(whole, Shard(0))
            gather = getattr(functional, "all_gather_single", functional.all_gather_tensor)
            gathered = gather(torch.full((1,), float(gang.rank)), 0, torch.distributed.group.WORLD)
            gang.save({"t": tensor, "gathered": gathered, "rank": gang.rank}, 1)
            gang.wait(1, timeout=10)
            into = {"t": placed(torch.zeros(6, 4), Shard(0)), "rank": None}
            torch.distributed.barrier()
            state, _ = gang.restore(1, into=into) or ({}, 0)
            found, _ = gang.restore(1) or ({}, 0)
            return [torch.equal(state["t"].full_tensor(), whole), torch.equal(found["t"], whole), found["gathered"].tolist(), state["rank"]]

        self.assertEqual(self.good(save), [[True, True, [0, 1, 2, 3], rank] for rank in range(4)])

    def test_a_tensor_that_is_not_reduced_yet_is_refused(self) -> None:
        from torch.distributed.tensor import Partial

        def save(gang: muster.Gang) -> Any:
            mesh = init_device_mesh("cpu", (2, 2))
            return muster.torch.save(gang, {"t": DTensor.from_local(torch.ones(2), mesh, (Replicate(), Partial()), run_check=False)}, 1)

        for error in self.run_ranks(save):
            self.assertRegex(str(error), r"'/t' is a DTensor that has not been reduced yet \(Partial\)")


class DcpTest(RanksCase):
    ranks = 2

    def test_a_planner_that_keeps_its_plans_loses_nothing(self) -> None:
        """It gives the storage what has changed since the save before: a new key that one rank saves, here."""

        def save(gang: muster.Gang) -> Any:
            state: dict[str, Any] = {"w": placed(numbers(4, 3), Shard(0))}
            saved = []
            for step in range(1, 5):
                if step > 1:
                    state[f"new{step}"] = torch.full((step,), float(step))
                planner = dcp.DefaultSavePlanner(enable_plan_caching=True)
                dcp.save(state, storage_writer=muster.torch.StorageWriter(gang, step), planner=planner)
                gang.wait(step, timeout=10)
                torch.distributed.barrier()
                into = {"w": placed(torch.full((4, 3), -7.0), Shard(0))} | {f"new{n}": torch.zeros(n) for n in range(2, step + 1)}
                dcp.load(into, storage_reader=muster.torch.StorageReader(gang, step))
                saved.append(torch.equal(into["w"].full_tensor(), numbers(4, 3)) and all(torch.equal(into[k], state[k]) for k in into if k != "w"))
            return saved

        self.assertEqual(self.good(save), [[True] * 4] * 2)

    def test_a_save_that_is_not_all_members_is_refused(self) -> None:
        for alone in ({"use_collectives": False}, {"no_dist": True}):

            def save(gang: muster.Gang, alone: dict[str, bool] = alone) -> None:
                dcp.save({"w": torch.ones(2)}, storage_writer=muster.torch.StorageWriter(gang, 1), **alone)

            for error in self.run_ranks(save):
                self.assertRegex(repr(error), "1 of the gang's 2 members take part in this save, and all must")
        self.assertEqual([musterd.shards for musterd in self.musterds], [{}, {}])

    def test_a_save_does_not_wait_for_the_store(self) -> None:
        for musterd in self.musterds:
            musterd.commit = False

        def save(gang: muster.Gang) -> Any:
            dcp.save({"w": torch.ones(2)}, storage_writer=muster.torch.StorageWriter(gang, 1))
            with self.assertRaises(muster.TimedOut):
                gang.wait(1, timeout=0.01)
            return True

        self.assertEqual(self.good(save), [True] * 2)

    def test_a_process_cannot_save_for_another_and_says_so(self) -> None:
        def save(gang: muster.Gang) -> Any:
            import pickle

            with self.assertRaisesRegex(TypeError, "a Gang cannot be brought to another process: .* a thread, not a process"):
                pickle.dumps(muster.torch.StorageWriter(gang, 1))
            return True

        self.assertEqual(self.good(save), [True] * 2)

    def test_a_checkpoint_of_another_kind_says_what_reads_it(self) -> None:
        def save(gang: muster.Gang) -> None:
            commit(gang, {"w": torch.ones(2)})
            dcp.save({"w": torch.ones(2)}, storage_writer=muster.torch.StorageWriter(gang, 2))
            gang.wait(2, timeout=10)

        self.good(save)
        for error in self.run_ranks(lambda gang: dcp.load({"w": torch.zeros(2)}, storage_reader=muster.torch.StorageReader(gang, 1))):
            self.assertIn("was not saved by muster.torch.StorageWriter: muster.torch.load and Gang.restore read it", str(error))
        for load in (muster.torch.load, muster.Gang.restore):
            for error in self.run_ranks(lambda gang: load(gang, step=2)):
                self.assertIn("was saved by muster.torch.StorageWriter: muster.torch.StorageReader reads it", str(error))

    def test_a_save_that_failed_is_no_obstacle_to_the_next_one(self) -> None:
        self.musterds[1].max_shard_bytes = 1 << 20

        def save(gang: muster.Gang) -> Any:
            state = {"w": torch.zeros(1 << 20 if gang.rank == 1 else 1), f"r{gang.rank}": torch.ones(1 << 20 if gang.rank == 1 else 2)}
            with self.assertRaisesRegex(dcp.CheckpointException, "above musterd's limit"):
                dcp.save(state, storage_writer=muster.torch.StorageWriter(gang, 1))
            dcp.save({"w": torch.ones(2)}, storage_writer=muster.torch.StorageWriter(gang, 1))
            gang.wait(1, timeout=10)
            return True

        self.assertEqual(self.good(save), [True] * 2)


class ErrorsTest(RanksCase):
    """One rank fails at one step of the protocol: all ranks get its error, soon, and what comes next is good."""

    ranks = 3

    def check(self, work: Callable[[muster.Gang, int], Any], everywhere: list[tuple[Any, str]], coordinator: list[tuple[Any, str]] = ()) -> None:
        """`work` gets a step, another one each time."""
        errors = (muster.DeviceError("the GPU is off"), muster.NotFound("it is gone"), OSError(28, "it is full"))
        cases = [(owner, name, rank, errors[rank]) for owner, name in everywhere for rank in range(self.ranks)]
        cases += [(owner, name, 0, errors[0]) for owner, name in coordinator]

        def call(gang: muster.Gang) -> Any:
            said = []
            for step, (owner, name, rank, error) in enumerate(cases, 10):
                began = time.monotonic()
                try:
                    with mock.patch.object(owner, name, side_effect=error) if gang.rank == rank else contextlib.nullcontext():
                        work(gang, step)
                    said.append("no error")
                except (Exception, dcp.CheckpointException) as why:
                    why = why.failures[rank][0] if isinstance(why, dcp.CheckpointException) else why
                    said.append(f"{why!r}" if time.monotonic() - began < SOON else f"{why!r}, too late")
            work(gang, len(cases) + 10)
            return said

        expected = [repr(error) for *_, error in cases]
        for rank, said in enumerate(self.good(call)):
            for case, one, want in zip(cases, said, expected):
                self.assertEqual(one, want, f"what rank {rank} got of {case}")

    def test_a_save_with_dcp(self) -> None:
        def save(gang: muster.Gang, step: int) -> None:
            dcp.save({"w": placed(numbers(6, 2), Shard(0)), "n": 3}, storage_writer=muster.torch.StorageWriter(gang, step))

        writer = muster.torch.StorageWriter
        everywhere = [(writer, name) for name in ("set_up_storage_writer", "prepare_local_plan", "write_data")]
        everywhere += [(dcp.DefaultSavePlanner, "finish_plan"), (muster.Gang, "_begin"), (muster._library.Library, "save_add_slice")]
        self.check(save, everywhere, [(writer, "prepare_global_plan"), (writer, "finish"), (muster.tree, "encode")])

    def test_an_asynchronous_save_with_dcp(self) -> None:
        def save(gang: muster.Gang, step: int) -> None:
            state = {"w": placed(numbers(6, 2), Shard(0)), "n": 3}
            dcp.async_save(state, storage_writer=muster.torch.StorageWriter(gang, step)).result()

        writer = muster.torch.StorageWriter
        self.check(save, [(writer, "set_up_storage_writer"), (writer, "write_data")], [(writer, "finish")])

    def test_a_load_with_dcp(self) -> None:
        def save(gang: muster.Gang) -> None:
            dcp.save({"w": placed(numbers(6, 2), Shard(0)), "n": 3}, storage_writer=muster.torch.StorageWriter(gang, 1))
            gang.wait(1, timeout=10)

        def load(gang: muster.Gang, _: int) -> None:
            dcp.load({"w": placed(torch.zeros(6, 2), Shard(0)), "n": 0}, storage_reader=muster.torch.StorageReader(gang, 1))

        self.good(save)
        reader = muster.torch.StorageReader
        everywhere = [(reader, name) for name in ("set_up_storage_reader", "prepare_local_plan", "read_data")]
        everywhere += [(muster.Gang, "restore_info"), (muster.Gang, "restore_slices"), (muster.tree, "decode")]
        self.check(load, everywhere, [(reader, "prepare_global_plan")])

    def test_a_save_of_muster_torch(self) -> None:
        def save(gang: muster.Gang, step: int) -> None:
            muster.torch.save(gang, {"w": placed(numbers(6, 2), Shard(0)), "n": torch.ones(3)}, step, replicated=True)

        library = muster._library.Library
        self.check(save, [(muster.tree, "flatten"), (muster.Gang, "_begin"), (library, "save_add_slice"), (library, "save_commit")])

    def test_a_load_of_muster_torch(self) -> None:
        def load(gang: muster.Gang, _: int) -> None:
            muster.torch.load(gang, {"w": placed(torch.zeros(6, 2), Shard(0))}, 1)

        self.good(lambda gang: commit(gang, {"w": placed(numbers(6, 2), Shard(0))}))
        self.check(load, [(muster._library.Library, "restore_open"), (muster.tree, "decode")])

    def test_a_step_that_one_rank_could_not_write_may_be_saved_again(self) -> None:
        """Rank 1 has handed its part over by then, and rank 0, the coordinator, has copied its own."""
        self.musterds[2].max_shard_bytes = 1 << 20

        def save(gang: muster.Gang) -> Any:
            state = {f"r{gang.rank}": torch.ones(1 << 20 if gang.rank == 2 else 2)}
            with self.assertRaisesRegex(dcp.CheckpointException, "above musterd's limit"):
                dcp.save(state, storage_writer=muster.torch.StorageWriter(gang, 1))
            state = {f"r{gang.rank}": torch.full((2,), float(gang.rank))}
            dcp.save(state, storage_writer=muster.torch.StorageWriter(gang, 1))
            gang.wait(1, timeout=10)
            into = {f"r{rank}": torch.zeros(2) for rank in range(3)}
            dcp.load(into, storage_reader=muster.torch.StorageReader(gang, 1))
            return [tensor.tolist() for tensor in into.values()]

        self.assertEqual(self.good(save), [[[0, 0], [1, 1], [2, 2]]] * 3)

    def test_what_one_musterd_says_reaches_all(self) -> None:
        """The same with a real cause: one member's musterd has a limit, no checkpoint, or one that does not read."""

        def save(gang: muster.Gang) -> None:
            dcp.save({f"r{gang.rank}": torch.ones(1 << 20)}, storage_writer=muster.torch.StorageWriter(gang, 1))
            gang.wait(1, timeout=10)

        def load(gang: muster.Gang) -> None:
            dcp.load({f"r{gang.rank}": torch.zeros(1 << 20)}, storage_reader=muster.torch.StorageReader(gang, 1))

        for musterd in self.musterds:
            musterd.max_shard_bytes = 1 << 20
            for error in self.run_ranks(save):
                self.assertRegex(str(error), "TooLarge.*above musterd's limit")
            musterd.max_shard_bytes = 0
        self.good(save)
        for musterd in self.musterds:
            musterd.ranges_fail = True
            for error in self.run_ranks(load):
                self.assertRegex(str(error), "Corrupt")
            musterd.ranges_fail = False
            shard = musterd.shards.pop(1)
            for error in self.run_ranks(load):
                self.assertRegex(str(error), "NotFound")
            musterd.shards[1] = shard
        self.good(load)


if __name__ == "__main__":
    unittest.main()
