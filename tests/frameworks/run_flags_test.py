"""muster-run knows torchrun's flags, those of the PyTorch that is pinned here, and no other. MUSTER_RUN names the program."""

import argparse
import os
import re
import subprocess
import unittest
from pathlib import Path

from torch.distributed.run import get_args_parser

SOURCE = Path(__file__).resolve().parents[2] / "client/run/command_line.cc"
NO_PROGRAM = "there is no program to run"


def refusal(*words: str, env: "dict[str, str] | None" = None) -> str:
    """What muster-run says of flags without a program behind them."""
    done = subprocess.run([os.environ["MUSTER_RUN"], *words], env=env or {}, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode == 0:
        raise AssertionError(f"muster-run {words} has done something")
    return done.stderr


def flags() -> "dict[str, bool]":
    """Each spelling of torchrun's flags, and whether it has a value."""
    actions = [a for a in get_args_parser()._actions if a.option_strings and not isinstance(a, argparse._HelpAction)]
    return {word: action.nargs != 0 for action in actions for word in action.option_strings}


class Flags(unittest.TestCase):
    def test_each_of_torchruns_is_taken_or_refused_by_name(self) -> None:
        self.assertGreater(len(flags()), 40)
        for word, has_value in flags().items():
            with self.subTest(word):
                said = refusal(word, "1") if has_value else refusal(word)
                self.assertTrue(NO_PROGRAM in said or f"{word} cannot be had: " in said, said)

    def test_variables_stand_for_the_same_flags(self) -> None:
        """Those of torchrun whose parser has read them: PET_NNODES and so on."""
        for action in get_args_parser()._actions:
            if type(action).__name__ not in ("env", "check_env"):
                continue
            variable = f"PET_{action.dest.upper()}"
            with self.subTest(variable):
                said = refusal(env={variable: ""})
                if action.nargs == 0:
                    self.assertIn(f"{variable} is neither 0 nor 1", said)
                else:
                    self.assertTrue(NO_PROGRAM in said or variable in said, said)

    def test_a_value_is_where_torchrun_has_one(self) -> None:
        for word, has_value in flags().items():
            with self.subTest(word):
                if has_value:
                    self.assertIn(f"{word} has no value", refusal(word))
                elif word.startswith("--"):
                    self.assertIn("takes no value", refusal(f"{word}=1"))

    def test_none_is_known_that_torchrun_does_not_have(self) -> None:
        table = SOURCE.read_text().split("constexpr Flag kFlags[]", 1)[1].split("};", 1)[0]
        known = re.findall(r'^    \{"([a-z-]+)", ', table, re.M)
        self.assertIn("nnodes", known)
        self.assertEqual([name for name in known if f"--{name}" not in flags() and name != "help"], [])


if __name__ == "__main__":
    unittest.main()
