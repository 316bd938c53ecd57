"""What `muster net test` measures between two guests, beside what perftest and iperf3 measure there, in turns."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from vc.names import REPOSITORY
from vc.wait import wait_until

sys.path[:0] = [str(REPOSITORY / "tests/vm"), str(REPOSITORY / "tests/provision")]

from guest import ClusterError, Guest, Guests, LinkTest, Options  # noqa: E402

_SETTINGS = "/etc/muster/roce.yaml"
_LISTENS_S = 60.0
_PERFTEST_PORT, _IPERF_PORT = 18515, 5201
_SECONDS = "1"
_ATTEMPTS = 5


@dataclass
class Figures:
    """Of each round: ours and theirs. A rate is the better one of both directions, in Mbit/s; a latency the shorter one, in us."""

    write_bw: list[tuple[float, float]] = field(default_factory=list)
    write_lat: list[tuple[float, float]] = field(default_factory=list)
    tcp_bw: list[tuple[float, float]] = field(default_factory=list)


@contextmanager
def _server(guest: Guest, command: list[str], port: int) -> Iterator[None]:
    server = guest.start(command)
    try:
        listening = ["ss", "--no-header", "--listening", "--tcp", "--numeric", f"sport = :{port}"]
        wait_until(lambda: server.poll() or guest.run(listening).stdout, _LISTENS_S, f"`{' '.join(command)}`", interval=0.1)
        yield
    finally:
        server.kill()


def _gid(guest: Guest) -> str:
    """The index that Muster uses itself."""
    shown = json.loads(guest.run(["muster", "net", "show", "--json"], check=True).stdout)
    [device] = shown["devices"]
    return str(device["ports"][0]["gid_index"])


def _perftest(program: list[str], column: int, server: Guest, client: Guest) -> float:
    """A number of the line of results."""
    command = [*program, "-d", "rxe0", "-F"]
    for _ in range(_ATTEMPTS):
        with _server(server, [*command, "-x", _gid(server)], _PERFTEST_PORT):
            done = client.run([*command, "-x", _gid(client), server.address], check=True)
        results = [line.split() for line in done.stdout.splitlines() if line.strip()[:1].isdigit()]
        # It measures how fast the processor's clock goes. Where it cannot tell, it prints 0.
        if (number := float(results[-1][column])) > 0:
            return number
    raise ClusterError(f"`{' '.join(command)}` says nothing: {done.stdout}{done.stderr}")


def _write_bw(server: Guest, client: Guest) -> float:
    # With as many queue pairs and writes under way as ours: bytes, iterations, peak, average.
    return 1000 * _perftest(["ib_write_bw", "--report_gbits", "-D", _SECONDS, "-q", "4", "-t", "4"], 3, server, client)


def _write_lat(server: Guest, client: Guest) -> float:
    # The shortest, as ours: bytes, iterations, least.
    return _perftest(["ib_write_lat", "-n", "200"], 2, server, client)


def _iperf(server: Guest, client: Guest) -> float:
    with _server(server, ["iperf3", "-s", "-1"], _IPERF_PORT):
        done = client.run(["iperf3", "-c", server.address, "-t", _SECONDS, "-J"], check=True)
    return float(json.loads(done.stdout)["end"]["sum_received"]["bits_per_second"]) / 1e6


def _both(measure: Callable[[Guest, Guest], float], a: Guest, b: Guest) -> tuple[float, float]:
    return measure(a, b), measure(b, a)


def measure(rounds: int) -> Figures:
    figures = Figures()
    options = Options(programs=(Path(REPOSITORY / "build/bin/muster"),))
    with Guests(2, options) as (a, b):
        for guest in (a, b):
            # Without a rate: as fast as it can.
            guest.write(_SETTINGS, "networks: 10.77.0.0/16\n")
            guest.run(["muster", "net", "set"], check=True)
        for _ in range(rounds):
            ours = LinkTest(a, b).verdict()
            assert ours["transport"] == "rdma", ours
            figures.write_bw.append((ours["mbit_s"], max(_both(_write_bw, a, b))))
            figures.write_lat.append((ours["latency_us"], min(_both(_write_lat, a, b))))
        for guest in (a, b):
            guest.run(["rdma", "link", "delete", "rxe0"], check=True)
        for _ in range(rounds):
            ours = LinkTest(a, b).verdict()
            assert ours["transport"] == "tcp", ours
            figures.tcp_bw.append((ours["mbit_s"], max(_both(_iperf, a, b))))
    return figures
