"""The rackctl command."""

import argparse
import os
import signal
import sys
from pathlib import Path

from vc.host import ClusterError

from .rack import Options, Rack


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--name", default="dev", help="the rack's name (default: %(default)s)")
    parser = argparse.ArgumentParser(
        prog="rackctl",
        description="Machines with systemd on this one: the controller and login host ctl, and nodes n1, n2, ... Needs root. "
        "A rack's directory is /tmp/muster-rack-NAME ($MUSTER_VC_DIR/muster-rack-NAME).",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, text: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, description=text, parents=[common])

    start = add("start", "start a rack, wait until it is ready")
    start.add_argument("--suite", default=Options().suite, help="the machines' release of Debian (default: %(default)s)")
    start.add_argument("--nodes", type=int, default=Options().nodes, help="(default: %(default)s)")
    start.add_argument("--slurm", action=argparse.BooleanOptionalAction, default=True, help="a site that has Slurm")
    start.add_argument("--packages", metavar="DIR", help="Muster's packages, for the site's mirror")
    stop = add("stop", "stop a rack, remove every trace of it")
    stop.add_argument("--keep-logs", type=Path, metavar="DIR", help="copy the logs there first")
    exec_ = add("exec", "run a command on a machine (without a command: a shell)")
    exec_.usage = "rackctl exec [--name NAME] [--as USER] HOST [-- COMMAND...]"
    exec_.add_argument("--as", dest="user", help="a user, such as trainer (default: root)")
    exec_.add_argument("host")
    add("kill", "a machine loses its power").add_argument("host")
    add("add", "one more machine").add_argument("host")
    return parser


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _act(args: argparse.Namespace, program: list[str]) -> None:
    if args.command == "start":
        debs = args.packages and str(Path(args.packages).resolve())
        options = Options(suite=args.suite, nodes=args.nodes, slurm=args.slurm, debs=debs)
        Rack(args.name, options).start(report=lambda text: print(text, flush=True))
    elif args.command == "stop":
        if not Rack(args.name).stop(args.keep_logs):
            print(f"no rack named '{args.name}' was there")
    elif args.command == "exec":
        command = Rack.open(args.name).command(args.host, program or ["bash"], args.user)
        sys.stdout.flush()
        os.execv(command[0], command)  # signals and the exit status are its own
    elif args.command == "kill":
        Rack.open(args.name).kill(args.host)
    else:
        Rack.open(args.name).add(args.host)


def main(argv: list[str]) -> int:
    split = argv.index("--") if "--" in argv else len(argv)
    args = _parser().parse_args(argv[:split])
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        _act(args, argv[split + 1 :])
    except ClusterError as error:
        print(f"rackctl: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("rackctl: interrupted", file=sys.stderr)
        return 130
    return 0
