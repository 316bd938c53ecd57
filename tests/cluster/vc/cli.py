"""The vcluster command."""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

from .cluster import Cluster, Options
from .host import ClusterError
from .names import CEPH_NODE, CONTROLLER
from .users import USERS

_OSD_SIGNALS = {"osd-kill": signal.SIGKILL, "osd-stop": signal.SIGSTOP, "osd-cont": signal.SIGCONT}
_DAEMONS = "musterd, slurmd, munged; slurmctld on ctl; mon.a, mgr.x, osd.0 to osd.2 on ceph"


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--name", default=argparse.SUPPRESS, help="the cluster's name (default: dev)")
    parser = argparse.ArgumentParser(
        prog="vcluster",
        parents=[common],
        description="A Slurm and Ceph cluster of virtual nodes on this machine: n1, n2, ..., the controller and "
        "submit host ctl, and ceph. Needs root. Its directory is /tmp/muster-vc-NAME ($MUSTER_VC_DIR/muster-vc-NAME).",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, text: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, description=text, parents=[common])

    start = add("start", "start a cluster, wait until it is ready")
    defaults = Options()
    start.add_argument("--nodes", type=int, default=defaults.nodes, help="compute nodes (default: %(default)s)")
    start.add_argument("--ceph", action=argparse.BooleanOptionalAction, default=True, help="with Ceph")
    start.add_argument("--muster", action=argparse.BooleanOptionalAction, default=True, help="with Muster")
    start.add_argument("--cpus", type=int, default=defaults.cpus, help="CPUs that a node claims (default: %(default)s)")
    start.add_argument("--build", default=defaults.build, metavar="DIR", help="Muster's build (default: %(default)s)")
    pair = {"action": "append", "default": [], "metavar": "KEY=VALUE", "type": _pair}
    start.add_argument("--set", help="a line of muster.yaml; may be repeated", **pair)
    start.add_argument("--slurm", help="a setting of slurm.conf; may be repeated", **pair)
    start.add_argument("--plugin", action="append", default=[], metavar="LINE", help="a line of plugstack.conf")

    stop = add("stop", "stop a cluster, remove every trace of it")
    stop.add_argument("--keep-logs", type=Path, metavar="DIR", help="copy the logs there first")
    add("status", "show nodes and daemons").add_argument("--json", action="store_true")

    for name, text in (("exec", "run a command as root on a node"), ("user", "run a command as an ordinary user")):
        command = add(name, text + " (without a command: a shell)")
        command.usage = f"vcluster {name} [--name NAME] {'[--as USER] ' if name == 'user' else ''}NODE [-- COMMAND...]"
        command.add_argument("node")
        if name == "user":
            command.add_argument("--as", dest="user", choices=list(USERS), default="trainer")

    for name, text in (
        ("kill", "a node loses its power"),
        ("cut", "a node loses its network and runs on"),
        ("heal", "a cut node has its network again"),
        ("revive", "a killed node starts again"),
    ):
        add(name, text).add_argument("node")

    for name, text in (
        ("restart", "stop a daemon and start it"),
        ("start-daemon", "start a daemon"),
        ("stop-daemon", "stop a daemon"),
    ):
        command = add(name, text)
        command.add_argument("node")
        command.add_argument("daemon", help=_DAEMONS)
        if name == "stop-daemon":
            command.add_argument("--signal", default="TERM", help="TERM, KILL, ... (default: %(default)s)")

    for name, text in (
        ("osd-kill", "SIGKILL an OSD"),
        ("osd-stop", "SIGSTOP an OSD"),
        ("osd-cont", "SIGCONT an OSD"),
        ("osd-start", "start an OSD again"),
    ):
        add(name, text).add_argument("osd", type=int, metavar="ID")
    return parser


def _pair(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise argparse.ArgumentTypeError(f"'{text}' is not KEY=VALUE")
    return key, value


def _start(args: argparse.Namespace) -> None:
    options = Options(
        nodes=args.nodes,
        ceph=args.ceph,
        muster=args.muster,
        cpus=args.cpus,
        build=str(Path(args.build).resolve()),
        settings=dict(args.set),
        slurm=dict(args.slurm),
        plugins=args.plugin,
    )
    cluster = Cluster(args.name, options)
    began = time.monotonic()
    cluster.start(report=lambda text: print(text, flush=True))
    me = f"{sys.argv[0]} {{}} --name {args.name}" if args.name != "dev" else f"{sys.argv[0]} {{}}"
    print(
        f"Ready after {time.monotonic() - began:.1f} s. Logs: {cluster.directory}/log\n"
        f"  run something:  {me.format('user')} {CONTROLLER} -- srun -N{args.nodes} hostname\n"
        f"  submit a job:   {me.format('user')} {CONTROLLER} -- sbatch -N{args.nodes} --wrap 'srun hostname'\n"
        f"                  (its home, shared by all nodes, is {cluster.directory}/home/trainer)\n"
        f"  stop it:        {me.format('stop')}"
    )


def _status(cluster: Cluster, as_json: bool) -> None:
    status = cluster.status()
    if as_json:
        print(json.dumps(status, indent=2))
        return
    print(f"{status['name']}  {status['directory']}  {status['subnet']}")
    for node in status["nodes"]:
        daemons = "  ".join(f"{name}:{pid or 'ended'}" for name, pid in node["daemons"].items())
        print(f"  {node['hostname']:6}{node['ip']:15}{node['state']:6}{daemons if node['state'] != 'dead' else ''}")


def _replace_by(command: list[str]) -> NoReturn:
    """Becomes the command, so that signals and the exit status are its own."""
    sys.stdout.flush()
    os.execv(command[0], command)


def _act(args: argparse.Namespace, program: list[str]) -> None:
    cluster = Cluster.open(args.name)
    command: str = args.command
    if command == "status":
        _status(cluster, args.json)
    elif command in ("exec", "user"):
        _replace_by(cluster.command(args.node, program or ["bash"], args.user if command == "user" else None))
    elif command in ("kill", "cut", "heal", "revive"):
        {"kill": cluster.kill, "cut": cluster.cut, "heal": cluster.heal, "revive": cluster.revive}[command](args.node)
    elif command == "restart":
        cluster.restart_daemon(args.node, args.daemon)
    elif command == "start-daemon":
        cluster.start_daemon(args.node, args.daemon)
    elif command == "stop-daemon":
        number = getattr(signal, "SIG" + args.signal.upper().removeprefix("SIG"), None)
        if number is None:
            raise ClusterError(f"no signal named {args.signal}")
        cluster.stop_daemon(args.node, args.daemon, number)
    elif command == "osd-start":
        cluster.start_daemon(CEPH_NODE, f"osd.{args.osd}")
    else:
        cluster.signal_daemon(CEPH_NODE, f"osd.{args.osd}", _OSD_SIGNALS[command])


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def main(argv: list[str]) -> int:
    split = argv.index("--") if "--" in argv else len(argv)
    args = _parser().parse_args(argv[:split])
    args.name = getattr(args, "name", "dev")
    program = argv[split + 1 :]
    if split < len(argv) and args.command not in ("exec", "user"):
        print(f"vcluster: {args.command} takes no command after --", file=sys.stderr)
        return 2
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        if args.command == "start":
            _start(args)
        elif args.command == "stop":
            if not Cluster(args.name).stop(args.keep_logs):
                print(f"no cluster named '{args.name}' was there")
        else:
            _act(args, program)
    except ClusterError as error:
        print(f"vcluster: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("vcluster: interrupted", file=sys.stderr)
        return 130
    return 0
