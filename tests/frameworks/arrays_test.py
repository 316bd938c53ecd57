#!/usr/bin/env python3
"""Arrays of every type that numpy, ml_dtypes and JAX have: what is saved comes back, bit for bit.

Through the real libmuster against a musterd of the test's own, and by local Gangs. PYTHONPATH: the build's python folder.
"""

import contextlib
import math
import os
import random
import subprocess
import sys
import tempfile
import textwrap
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DEVICES = 4
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"
os.environ["JAX_PLATFORMS"] = "cpu"
sys.dont_write_bytecode = True
for folder in ("unit/client", "support"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / folder))

import own_network  # noqa: E402

if __name__ == "__main__":
    own_network.enter()  # before what takes seconds to import

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import ml_dtypes  # noqa: E402
import muster  # noqa: E402
import numpy  # noqa: E402
import torch  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402
from muster.testing import local_gang  # noqa: E402
from python_rig import MemberCase  # noqa: E402
from safetensors import safe_open  # noqa: E402

SEED = os.environ.get("MUSTER_TEST_SEED", "1")
ADDED = [numpy.dtype(name) for name in ml_dtypes.__all__ if isinstance(getattr(ml_dtypes, name), type) and "info" not in name]
PLAIN = [numpy.dtype(text) for text in "? b B <h >h <H <i >i <I <q <Q <e <f >f <d >d <g <F >F <D <U3 >U3 S5 <M8[s] >M8[D] <m8[ns]".split()]
SHAPES: list[tuple[int, ...]] = [(), (0,), (5,), (2, 0, 3), (4, 6), (2, 4, 3)]
LAYOUTS = ["rows", "columns", "gaps", "read-only", "offset"]
MESH = Mesh(numpy.array(jax.devices()).reshape(2, 2), ("a", "b"))
SPECS = [PartitionSpec(*spec) for spec in [(), ("a",), (None, "b"), ("b", "a"), (("a", "b"),), (None, ("b", "a"))]]


def bits_of(rng: random.Random, dtype: Any, shape: tuple[int, ...]) -> Any:
    if dtype.kind == "U":  # not each number is a character
        return numpy.array([chr(rng.randrange(32, 1 << 12)) for _ in range(math.prod(shape))], dtype).reshape(shape)
    raw = bytearray(rng.randbytes(math.prod(shape) * dtype.itemsize))
    if dtype.kind == "b":
        raw = bytearray(byte & 1 for byte in raw)
    return numpy.frombuffer(raw, dtype).reshape(shape) if raw else numpy.empty(shape, dtype)


def laid_out(array: Any, layout: str) -> Any:
    """The same values in memory of this layout."""
    if layout == "read-only" or not array.shape:
        array = array.copy()
        array.flags.writeable = layout != "read-only"
        return array
    if layout == "columns":
        return numpy.asfortranarray(array)
    memory = numpy.zeros((*array.shape[:-1], 2 * array.shape[-1] + 1), array.dtype)
    view = memory[..., 1 : 1 + array.shape[-1]] if layout == "offset" else memory[..., : 2 * array.shape[-1] : 2]
    view[...] = array
    return view if layout in ("offset", "gaps") else array.copy()


def jax_array(array: Any, spec: PartitionSpec | None) -> Any:
    return jax.device_put(array) if spec is None else jax.device_put(array, NamedSharding(MESH, spec))


class ArraysCase(MemberCase):
    def setUp(self) -> None:
        super().setUp()
        directory = tempfile.TemporaryDirectory(prefix="muster-test-")
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        os.environ["RANK"], self.musterd.world_size = "0", 1
        self.step = 0

    @contextlib.contextmanager
    def gangs(self) -> Iterator[list[muster.Gang]]:
        """Muster's, and a local one."""
        with muster.init() as gang, local_gang(self.directory) as local:
            yield [gang, local]

    def save(self, gang: muster.Gang, state: Any) -> int:
        self.step += 1
        gang.save(state, self.step)
        gang.wait(timeout=30)
        return self.step

    def go_round(self, gang: muster.Gang, state: Any, into: Any = None) -> Any:
        found = gang.restore(self.save(gang, state), into=into)
        assert found is not None
        return found.state

    def assert_same(self, got: Any, array: Any, what: object) -> None:
        self.assertIs(type(got), numpy.ndarray, what)
        self.assertEqual((got.dtype, got.dtype.str, got.shape), (array.dtype, array.dtype.str, array.shape), what)
        self.assertEqual(got.tobytes(), array.tobytes(), what)


class ArraysTest(ArraysCase):
    def test_arrays_of_every_type_and_layout_come_back_bit_for_bit(self) -> None:
        rng = random.Random(SEED)
        state = {}
        for dtype in PLAIN + ADDED:
            for shape in SHAPES:
                layout = rng.choice(LAYOUTS)
                state[f"{dtype.str} {dtype.name} {shape} {layout}"] = laid_out(bits_of(rng, dtype, shape), layout)
        with self.gangs() as gangs:
            for gang in gangs:
                got = self.go_round(gang, state)
                self.assertEqual(list(got), list(state))
                for name, array in state.items():
                    self.assert_same(got[name], array, name)
                into = {name: laid_out(bits_of(rng, a.dtype, a.shape), rng.choice(LAYOUTS[:3])) for name, a in state.items()}
                found = gang.restore(self.step, into=into)
                assert found is not None
                for name, array in state.items():
                    self.assertIs(found.state[name], into[name])
                    self.assert_same(into[name], array, name)

    def test_scalars_come_back_as_they_were(self) -> None:
        scalars = {dtype.name: bits_of(random.Random(SEED), dtype, ())[()] for dtype in ADDED}
        with self.gangs() as gangs:
            for gang in gangs:
                got = self.go_round(gang, scalars)
                for name, scalar in scalars.items():
                    self.assertIs(type(got[name]), type(scalar))
                    self.assertEqual(numpy.asarray(got[name]).tobytes(), numpy.asarray(scalar).tobytes(), name)

    def test_torch_and_ml_dtypes_fill_each_others(self) -> None:
        names = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "int4", "uint2"]
        rng = random.Random(SEED)
        arrays = {name: bits_of(rng, numpy.dtype(name), (3, 4)) for name in names}
        tensors = {name: torch.empty((4, 3), dtype=getattr(torch, name)).t() for name in names}
        with self.gangs() as gangs:
            for gang in gangs:
                self.go_round(gang, arrays, into=tensors)
                got = self.go_round(gang, tensors, into={name: numpy.empty((3, 4), name) for name in names})
                for name in names:
                    self.assert_same(got[name], arrays[name], name)

    def test_what_no_program_could_read_again_is_refused_by_its_place(self) -> None:
        swapped = numpy.ones(2, ml_dtypes.bfloat16).view(numpy.dtype(ml_dtypes.bfloat16).newbyteorder(">"))
        texts = numpy.array(["a"], numpy.dtypes.StringDType())
        records = numpy.zeros(2, [("a", "f4")])
        for wrong in (swapped, texts, records, numpy.zeros(2, jax.dtypes.float0), numpy.zeros(2, "V4"), numpy.array([object()])):
            with muster.init() as gang, self.assertRaisesRegex(TypeError, "^'/m/w' is an array of .*, which cannot be saved"):
                gang.save({"m": {"w": wrong}}, 1)
        self.assertEqual(self.musterd.shards, {})

    def test_another_type_or_shape_is_an_error(self) -> None:
        with muster.init() as gang:
            step = self.save(gang, {"w": numpy.zeros((2, 3), ml_dtypes.int4)})
            for into in (numpy.zeros((2, 3), numpy.int8), jnp.zeros((2, 3), jnp.int8), jnp.zeros((3, 2), jnp.int4)):
                with self.assertRaisesRegex(muster.Invalid, r"'/w' is int4 of shape \(2, 3\) in the checkpoint, int"):
                    gang.restore(step, into={"w": into})


class JaxTest(ArraysCase):
    def test_arrays_of_jax_come_back_as_numpys_and_fill_others_however_they_are_divided(self) -> None:
        rng = random.Random(SEED)
        arrays, state = {}, {}
        kinds = ["bool", "int8", "int32", "uint16", "float16", "bfloat16", "float32", "complex64", *(d.name for d in ADDED)]
        for kind in kinds:
            if kind in ("int1", "uint1", "complex32", "bcomplex32", "float6_e2m3fn", "float6_e3m2fn"):  # JAX has none
                continue
            array = bits_of(rng, numpy.dtype(kind), (8, 4))
            if numpy.dtype(kind).itemsize == 1 and (bits := {"2": 2, "4": 4}.get(kind.removeprefix("u").removeprefix("int"))):
                array = (array.view(numpy.uint8) % (1 << bits)).astype(numpy.int8).astype(kind)
            if kind == "float4_e2m1fn":
                array = (array.view(numpy.uint8) & 15).view(kind)
            for spec in [None, *SPECS]:
                name = f"{kind} {spec}"
                arrays[name], state[name] = array, jax_array(array, spec)
        state |= {"scalar": jnp.float32(1.5), "empty": jnp.zeros((0, 3), jnp.float32), "n": jax_array(numpy.int32(7), SPECS[0])}
        arrays |= {name: numpy.asarray(state[name]) for name in ("scalar", "empty", "n")}
        for spec in SPECS:
            arrays[f"none {spec}"] = numpy.zeros((0, 4), numpy.float32)
            state[f"none {spec}"] = jax_array(arrays[f"none {spec}"], spec)
        with self.gangs() as gangs:
            for gang in gangs:
                got = self.go_round(gang, state)
                for name, array in arrays.items():
                    self.assert_same(got[name], array, name)
                into: dict[str, Any] = {}
                for name, array in arrays.items():
                    spec = rng.choice([None, *SPECS]) if array.shape == (8, 4) else None
                    into[name] = jax_array(numpy.zeros_like(array), spec)
                    if spec is not None and rng.random() < 0.3:
                        into[name] = jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=into[name].sharding)
                    elif rng.random() < 0.2:
                        into[name].delete()
                found = gang.restore(self.step, into={"s": [into, (into["n"],)]} | into, strict=False)
                assert found is not None
                for name, array in arrays.items():
                    made, like = found.state[name], into[name]
                    self.assertIsInstance(made, jax.Array)
                    self.assertEqual(made.sharding, like.sharding, name)
                    self.assertEqual(made.committed, getattr(like, "committed", True))
                    self.assert_same(numpy.array(made), array, name)

    def test_what_devices_have_alike_is_saved_once(self) -> None:
        whole = numpy.arange(1 << 16, dtype=numpy.float32).reshape(256, 256)
        with local_gang(self.directory) as gang:
            self.save(gang, {str(spec): jax_array(whole, spec) for spec in SPECS})
        file = self.directory / "step-1/rank00000-of-00001.safetensors"
        with safe_open(file, "np") as shard:
            sizes = [shard.get_tensor(name).nbytes for name in shard.keys() if name != "structure"]
        self.assertEqual((len(sizes), sum(sizes)), (1 + 2 + 2 + 4 + 4 + 4, len(SPECS) * whole.nbytes))

    def test_nothing_that_is_the_cpus_is_copied_and_no_copy_is_kept(self) -> None:
        from muster.slices import to_save

        for array in (jnp.zeros((64, 64), jnp.bfloat16), jnp.arange(5)):
            self.assertEqual(to_save("w", muster.Slice(array)).buffer.ready().address, array.unsafe_buffer_pointer())
        fours = jnp.zeros((64, 64), jnp.int4)  # of which numpy's is a copy
        to_save("w", muster.Slice(fours)).buffer.ready()
        self.assertIsNone(fours._npy_value)

    def test_what_has_no_values_is_refused_by_its_place(self) -> None:
        donated = jnp.ones(1000)
        jax.jit(lambda x: x + 1, donate_argnums=0)(donated)
        self.assertTrue(donated.is_deleted())
        divided = jax_array(numpy.zeros((8, 4), numpy.float32), SPECS[1])
        divided.delete()
        with muster.init() as gang:
            for wrong in (donated, divided):
                with self.assertRaisesRegex(ValueError, "'/p/w' is a jax.Array that was deleted, or donated to a function: save it before"):
                    gang.save({"p": {"w": wrong}}, 1)
            with self.assertRaisesRegex(TypeError, "'/p' is a jax.Array that is being traced, which has no values yet"):
                jax.jit(lambda x: gang.save({"p": x}, 1))(jnp.ones(2))
            step = self.save(gang, {"k": jax.random.key_data(jax.random.key(0))})
            for call in (lambda: gang.save({"k": jax.random.key(0)}, 2), lambda: gang.restore(step, into={"k": jax.random.key(0)})):
                with self.assertRaisesRegex(TypeError, r"'/k' is a jax.Array of key<fry>, which cannot be saved or restored: use jax.random.key_data"):
                    call()
            with self.assertRaisesRegex(TypeError, "'w' cannot be restored into a jax.Array, which never changes"):
                gang.restore_slices({"w": muster.Slice(jnp.zeros(2))})

    def test_a_slice_may_be_one_of_jax(self) -> None:
        with self.gangs() as gangs:
            for gang in gangs:
                gang.save_slices({"w": muster.Slice(jnp.ones((1, 3)), (2, 3), (0, 0)), "v": muster.Slice(jnp.arange(3))}, 1)
                gang.wait(timeout=30)
                got = numpy.zeros((1, 3), numpy.float32)
                gang.restore_slices({"w": muster.Slice(got, (2, 3), (0, 0))}, 1)
                self.assertEqual(got.tolist(), [[1, 1, 1]])

    def test_types_that_jax_would_make_smaller_are_an_error(self) -> None:
        with local_gang(self.directory) as gang:
            step = self.save(gang, {"w": numpy.arange(3)})
            with self.assertRaisesRegex(muster.Invalid, "'/w' is of type int64, of which JAX makes int32: set jax_enable_x64"):
                gang.restore(step, into={"w": jax.ShapeDtypeStruct((3,), numpy.int64)})


# One process of two, each with two devices. It saves global arrays, and then makes them again.
SPAN = """
    import os, sys
    import jax, numpy, muster
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    from muster.testing import local_gang

    directory, address, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
    jax.distributed.initialize(address, 2, rank)
    mesh = Mesh(numpy.array(jax.devices()).reshape(2, 2), ("a", "b"))
    whole = numpy.arange(64, dtype=numpy.float32).reshape(8, 8)

    def placed(values, spec, over=mesh):
        sharding = NamedSharding(over, spec)
        return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])

    specs = [P(), P("a"), P("b"), P(None, "b"), P("a", "b"), P(("b", "a"))]
    state = {f"s{i}": placed(whole, spec) for i, spec in enumerate(specs)} | {"own": jnp.full(3, rank)}
    state["p"] = placed(numpy.asarray(whole, "bfloat16"), P("a"))
    gang = local_gang(directory, rank=rank, world_size=2)
    gang.save(state, 1)
    try:
        gang.save_slices({"w": muster.Slice(state["s1"])}, 2)
    except TypeError as why:
        assert "'w' is a jax.Array of several processes" in str(why), why
    else:
        raise AssertionError("a Slice of several processes")
    gang.wait(timeout=60)
    like = {f"s{i}": placed(numpy.zeros_like(whole), spec) for i, spec in enumerate(reversed(specs))}
    like |= {"own": jnp.zeros(3, "int32"), "p": jax.ShapeDtypeStruct((8, 8), "bfloat16", sharding=state["p"].sharding)}
    if gang.restore(1).state["own"].tolist() != [rank] * 3:
        raise AssertionError("another member's")
    for name, array in gang.restore(1, into=like).state.items():
        assert array.sharding == like[name].sharding, name
        for shard in array.addressable_shards:
            values = numpy.full(3, rank, "int32") if name == "own" else whole.astype(array.dtype)
            assert (numpy.asarray(shard.data) == values[shard.index]).all(), (name, shard)
    gang.exchange("done", b"", timeout=60)
"""


class ProcessesTest(ArraysCase):
    def test_arrays_that_span_processes_are_saved_once_and_restored_by_any_number(self) -> None:
        environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
        command = [sys.executable, "-c", textwrap.dedent(SPAN), str(self.directory), f"127.0.0.1:{own_network.PORT}"]
        members = [
            subprocess.Popen([*command, str(rank)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for rank in range(2)
        ]
        try:
            told = [member.communicate(timeout=120)[0] for member in members]
        finally:
            for member in members:
                member.kill()
        self.assertEqual([member.returncode for member in members], [0, 0], "\n".join(told))
        sizes = []
        for rank in range(2):
            with safe_open(self.directory / f"step-1/rank0000{rank}-of-00002.safetensors", "pt") as shard:
                sizes.append({name: shard.get_tensor(name).nbytes for name in shard.keys() if name not in ("own", "structure")})
        self.assertEqual(sum(sum(each.values()) for each in sizes), 6 * 256 + 128)
        self.assertGreater(min(sum(each.values()) for each in sizes), 0)
        whole = numpy.arange(64, dtype=numpy.float32).reshape(8, 8)
        with local_gang(self.directory) as gang:  # of one
            like = {"p": jnp.zeros((8, 8), jnp.bfloat16), "s1": jax_array(numpy.zeros_like(whole), SPECS[3])}
            found = gang.restore(1, into=like)
            assert found is not None
            for name in like:
                numpy.testing.assert_array_equal(numpy.asarray(found.state[name]).astype(numpy.float32), whole)


class ImportsTest(ArraysCase):
    def python(self, code: str) -> str:
        command = [sys.executable, "-c", textwrap.dedent(code), str(self.directory)]
        done = subprocess.run(command, timeout=60, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_no_package_is_imported_without_need(self) -> None:
        out = self.python("""
            import sys, muster, numpy
            from muster.testing import local_gang
            gang = local_gang(sys.argv[1])
            gang.save({"w": numpy.ones(2), "n": 1}, 1)
            assert gang.restore(1).state["w"].tolist() == [1, 1]
            print(sorted({"jax", "jaxlib", "ml_dtypes", "torch"} & set(sys.modules)))
        """)
        self.assertEqual(out, "[]\n")

    def test_types_of_ml_dtypes_need_it_once_they_are_restored(self) -> None:
        with local_gang(self.directory) as gang:
            self.save(gang, {"w": jnp.ones(2, jnp.bfloat16), "v": numpy.ones(2, ml_dtypes.int4)})
        out = self.python("""
            import sys
            from muster.testing import local_gang
            state = local_gang(sys.argv[1]).restore(1).state
            print(state["w"].dtype, state["v"].dtype, "jax" in sys.modules)
            for name in [name for name in sys.modules if name.startswith(("ml_dtypes", "numpy"))]:
                del sys.modules[name]
        """)
        self.assertEqual(out, "bfloat16 int4 False\n")
        out = self.python("""
            import sys
            sys.modules["ml_dtypes"] = None
            import muster, numpy, torch
            from muster.testing import local_gang
            gang = local_gang(sys.argv[1])
            try:
                gang.restore(1)
            except muster.Invalid as why:
                print(why)
            into = {"w": torch.zeros(2, dtype=torch.bfloat16), "v": torch.empty(2, dtype=torch.int4)}
            print(gang.restore(1, into=into).state["w"])
        """)
        what = f"'/w' is of type 'bfloat16', which numpy {numpy.__version__} does not have without the package ml_dtypes, which cannot be imported"
        self.assertEqual(out, f"{what}\ntensor([1., 1.], dtype=torch.bfloat16)\n")


class SafetensorsTest(ArraysCase):
    def test_its_library_reads_what_a_local_gang_writes(self) -> None:
        kinds = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"]
        rng = random.Random(SEED)
        state = {}
        for kind in kinds:
            dtype = getattr(torch, kind)
            state[kind] = torch.tensor(list(rng.randbytes(12 * dtype.itemsize)), dtype=torch.uint8).view(dtype).reshape(3, 4)
        with local_gang(self.directory) as gang:
            got = self.go_round(gang, state)
        with safe_open(self.directory / "step-1/rank00000-of-00001.safetensors", "pt") as file:
            for kind, tensor in state.items():
                for read in (file.get_tensor(kind), got[kind]):
                    self.assertEqual((read.dtype, read.shape), (tensor.dtype, tensor.shape), kind)
                    self.assertTrue(torch.equal(read.view(torch.uint8), tensor.view(torch.uint8)), kind)


if __name__ == "__main__":
    unittest.main()
