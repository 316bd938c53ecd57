#!/usr/bin/python3
"""The guests themselves: what other tests of this directory rely on."""

import contextlib
import os
import signal
import subprocess
import sys
import unittest
from pathlib import Path
from typing import ClassVar

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "cluster"), str(HERE.parent / "provision")]

from guest import ClusterError, Guest, Guests, Options, guests_of_test, wait_until  # noqa: E402
from vc.host import start_time  # noqa: E402

WAIT_S = 300.0
# Says what it has started, and waits to be ended.
PROGRAM = """
import sys
sys.path[:0] = {path!r}
from guest import Options, guests_of_test
guests = guests_of_test(1, Options(programs=()))
guests.start()
print(guests.guests[0].pid, guests.names.directory, flush=True)
try:
    sys.stdin.read()
except KeyboardInterrupt:
    pass
"""


class GuestsTest(unittest.TestCase):
    guests: ClassVar[Guests]
    guest: ClassVar[Guest]

    @classmethod
    def setUpClass(cls) -> None:
        cls.guests = guests_of_test(1, Options(programs=()))
        cls.addClassCleanup(cls.guests.stop)
        cls.guests.start()
        [cls.guest] = cls.guests.guests

    def test_a_program_has_its_input_its_output_and_its_status(self) -> None:
        done = self.guest.run(["sh", "-c", "cat; echo said >&2; exit 3"], stdin="given")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (3, "given", "said\n"))
        self.assertEqual(self.guest.run(["sh", "-c", "kill -TERM $$"]).returncode, -signal.SIGTERM)
        with self.assertRaisesRegex(ClusterError, "`false` on a failed"):
            self.guest.run(["false"], check=True)

    def test_programs_run_beside_each_other_and_one_that_does_not_end_is_killed(self) -> None:
        long = self.guest.start(["sleep", "infinity"])
        self.assertEqual(self.guest.run(["hostname"], check=True).stdout, "a\n")
        self.assertIsNone(long.poll())
        with self.assertRaisesRegex(ClusterError, "has not ended after 0.1 s"):
            long.wait(timeout=0.1)
        self.assertEqual(long.wait().returncode, -signal.SIGKILL)

    def test_what_is_written_is_there_after_a_reboot(self) -> None:
        content = bytes(range(256)) * 4096
        file = self.guests.names.directory / "file"
        file.write_bytes(content)
        file.chmod(0o750)
        self.guest.copy(file, "/srv/some/file")
        self.guest.reboot()
        self.assertEqual(self.guest.run(["stat", "--format=%a %s", "/srv/some/file"]).stdout, f"750 {len(content)}\n")
        self.guest.copy(file, "/srv/another")
        self.guest.run(["cmp", "/srv/some/file", "/srv/another"], check=True)

    def test_no_guest_reaches_the_machine(self) -> None:
        self.assertEqual(self.guest.run(["ip", "route", "show", "default"], check=True).stdout, "")
        links = {line.split(":")[1].strip() for line in self.guests.network.run(["ip", "-o", "link"]).splitlines()}
        self.assertEqual(
            {link for link in links if not link.startswith(("gre", "sit", "tunl", "ip", "erspan"))}, {"lo", "fabric", "a-fabric"}
        )
        self.assertEqual(self.guests.network.run(["ip", "-o", "address", "show", "up", "scope", "global"]), "")

    def test_nothing_is_left_of_guests_whose_test_was_ended(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            program = PROGRAM.format(path=sys.path[:3])
            with subprocess.Popen(
                [sys.executable, "-B", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as test:
                assert test.stdout is not None
                with contextlib.ExitStack() as stack:
                    stack.callback(test.kill)
                    pid, directory = test.stdout.readline().split()
                    began = start_time(int(pid))
                    self.assertIsNotNone(began)
                    os.kill(test.pid, number)
                    test.wait(WAIT_S)
            wait_until(lambda: start_time(int(pid)) != began, WAIT_S, "the end of QEMU")
            if number == signal.SIGTERM:
                self.assertFalse(Path(directory).exists())
            else:
                for file in Path(directory).iterdir():
                    file.unlink()
                Path(directory).rmdir()


if __name__ == "__main__":
    unittest.main(verbosity=2)
