"""The wheel muster-client: the same bytes again, and what a virtual environment has of it. MUSTER_LIBRARY names libmuster."""

import os
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = os.environ["MUSTER_LIBRARY"]
# What of the variables reaches the programs that the tests run.
CLEAN = {key: value for key, value in os.environ.items() if not key.startswith(("MUSTER_", "PYTHON"))}


def run(*words: "str | Path", code: int = 0, env: "dict[str, str] | None" = None) -> str:
    done = subprocess.run(
        list(map(str, words)), env={**CLEAN, **(env or {})}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != code:
        raise AssertionError(f"{' '.join(map(str, words))} ended with {done.returncode}: {done.stdout}")
    return done.stdout


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls._directory = tempfile.TemporaryDirectory(prefix="muster-wheel-")
        cls.addClassCleanup(cls._directory.cleanup)
        cls.place = Path(cls._directory.name)
        cls.wheel = cls.build("first")
        cls.python = cls.place / "venv/bin/python"
        run("/usr/bin/python3", "-m", "venv", cls.place / "venv")
        run(cls.python, "-m", "pip", "install", "--disable-pip-version-check", "--no-index", cls.wheel)

    @classmethod
    def build(cls, directory: str) -> Path:
        run(ROOT / "packaging/build-wheel", "--output", cls.place / directory)
        (wheel,) = (cls.place / directory).glob("*.whl")
        return wheel

    def python_says(self, program: str, **more: "str | None") -> str:
        env = {key: value for key, value in more.items() if value is not None}
        return run(self.python, "-c", program, env=env)

    def test_has_all_of_the_package_and_is_the_same_again(self) -> None:
        self.assertEqual(self.wheel.read_bytes(), self.build("second").read_bytes())
        with zipfile.ZipFile(self.wheel) as wheel:
            found = {name for name in wheel.namelist() if ".dist-info/" not in name}
            for name in found:
                self.assertEqual(wheel.read(name), (ROOT / "client/python" / name).read_bytes(), name)
        source = ROOT / "client/python"
        package = {str(file.relative_to(source)) for file in source.glob("muster/**/*") if file.suffix == ".py" or file.name == "py.typed"}
        self.assertEqual(found, package | {"muster_warm.py", "muster-warm.pth"})

    def test_a_program_outside_of_a_gang_is_told_so(self) -> None:
        program = "import muster\ntry:\n    muster.init()\nexcept muster.NotInGang as error:\n    print(error)"
        self.assertIn("gang", self.python_says(program, MUSTER_LIBRARY=LIBRARY))

    def test_a_library_that_does_not_fit_is_named(self) -> None:
        program = "import muster\ntry:\n    muster.init()\nexcept ImportError as error:\n    print(error)"
        said = self.python_says(program, MUSTER_LIBRARY="libc.so.6")
        self.assertEqual(said, "libc.so.6 has no muster_open: it is of another release than this Python package\n")
        said = self.python_says(program, MUSTER_LIBRARY="/nowhere/libmuster.so.0")
        self.assertIn("cannot load libmuster (/nowhere/libmuster.so.0)", said)

    def test_the_hook_of_warm_starts_is_there_and_does_nothing_by_itself(self) -> None:
        program = "import sys; print('muster_warm' in sys.modules, 'muster' in sys.modules)"
        self.assertEqual(self.python_says(program), "False False\n")
        self.assertEqual(self.python_says(program, MUSTER_WARM="nobody-listens-here"), "True False\n")

    def test_a_users_type_checker_sees_its_types(self) -> None:
        program = self.place / "program.py"
        program.write_text("import muster\n\nstep: str = muster.init().rank\n")
        mypy = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir=/dev/null", "--python-executable", self.python]
        said = run(*mypy, program, code=1)
        self.assertIn('expression has type "int", variable has type "str"', said)
        self.assertIn("Found 1 error in 1 file", said)

    def test_the_builder_refuses_words_that_it_does_not_know(self) -> None:
        self.assertIn("usage: packaging/build-wheel", run(ROOT / "packaging/build-wheel", "--output=here", code=2))


if __name__ == "__main__":
    unittest.main()
