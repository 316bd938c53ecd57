"""What provisioning/try.sh runs once the packages are built: the rack, and the story on it."""

import argparse
import contextlib
import os
import signal
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True
_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parent / "cluster"), str(_HERE.parent / "demo")]

import screen  # noqa: E402
import blank_site  # noqa: E402
from rack import ClusterError, Options, Rack  # noqa: E402
from story import Story  # noqa: E402

ROOT = _HERE.parents[1]


def _explain_keep(rack: Rack) -> None:
    rackctl = os.path.relpath(_HERE / "rackctl")
    name = rack.names.name
    screen.title("The rack is still up")
    screen.say(f"a shell on a machine: {rackctl} exec --name {name} ctl")
    screen.say(f"logs:                 {rack.directory / 'log'}")
    screen.say(f"remove it:            {rackctl} stop --name {name}")


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt(number)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--patient", action="store_true")
    parser.add_argument("--suite", default=Options().suite)
    parser.add_argument("--packages", type=Path, required=True)
    arguments = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    began = time.monotonic()
    rack = Rack(f"try-{os.getpid()}", blank_site.options(arguments.suite, arguments.packages))
    logs: Path | None = Path(os.environ.get("MUSTER_TEST_LOGS", ROOT / "build" / "try-logs")) / rack.names.name
    try:
        Story(rack, blank_site.PATIENT if arguments.patient else {}).tell()
        screen.title(f"All of it was true, in {time.monotonic() - began:.0f} s")
        logs = None
        return 0
    except ClusterError as error:
        screen.say(f"It failed: {error}", "red")
        return 1
    except KeyboardInterrupt as interrupt:
        logs = None
        arguments.keep = False
        with contextlib.suppress(BrokenPipeError):
            screen.say("interrupted: the rack is being removed")
        return 128 + (interrupt.args[0] if interrupt.args else signal.SIGINT)
    finally:
        if arguments.keep and rack.directory.exists():
            _explain_keep(rack)
        else:
            rack.stop(keep_logs=logs)
            if logs is not None and logs.exists():
                screen.say(f"the rack's logs: {logs}")


if __name__ == "__main__":
    sys.exit(main())
