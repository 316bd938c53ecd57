"""Options that benchmarks have alike."""

import argparse


def add_count(parser: argparse.ArgumentParser, option: str, default: int, text: str) -> None:
    parser.add_argument(option, type=int, default=default, metavar="N", help=f"{text} (default: {default})")
