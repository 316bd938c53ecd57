"""What the loaded plugin costs a job that is no gang: srun of `true`, with and without it, in interleaved pairs.

On a cluster of its own, inside one allocation, so that the scheduler has no part in it. Both sides read a plugstack.conf
that includes the same file; the loop rewrites that file before each srun.
"""

import argparse
import json
import math
import os
import re
import statistics
from pathlib import Path

from support.report import Report, median
from vc import Cluster, ClusterError
from vc.slurm import plugstack_line

_LOOP = """
import json, subprocess, sys, time
took = []
for i in range(2 * (int(sys.argv[1]) + 1)):
    # The order within a pair changes, so that neither side is always the first.
    loaded = i % 4 in (1, 2)
    with open("/tmp/plugstack", "w") as file: file.write(sys.argv[2] + "\\n" if loaded else "")
    began = time.monotonic()
    subprocess.run(["srun", "-n1", "true"], check=True, stdin=subprocess.DEVNULL)
    took.append((loaded, 1000 * (time.monotonic() - began)))
print(json.dumps(took[2:]))
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pairs", type=int, default=100, metavar="N", help="pairs of srun (default: 100)")
    parser.add_argument("--build", type=Path, metavar="DIR", help="Muster's build (default: build)")


def run(args: argparse.Namespace) -> Report:
    changes = {"build": str(args.build.resolve())} if args.build else {}
    cluster = Cluster(f"bench{os.getpid()}", nodes=1, ceph=False, **changes)
    with cluster:
        (cluster.directory / "etc/slurm/plugstack.conf").write_text("include /tmp/plugstack\n")
        allocated = cluster.user("ctl", ["salloc", "--no-shell", "-n1"], timeout=60)
        found = re.search(r"job allocation (\d+)", allocated.stderr)
        if not found:
            raise ClusterError(f"no allocation: {allocated.stderr}")
        words = ["/usr/bin/python3", "-c", _LOOP, str(args.pairs), plugstack_line()]
        done = cluster.user("ctl", words, env={"SLURM_JOB_ID": found[1]}, timeout=60 + 2 * args.pairs)
        cluster.user("ctl", ["scancel", found[1]])
        if done.returncode != 0:
            raise ClusterError(f"srun failed: {done.stderr}")
    took = json.loads(done.stdout)
    with_it = [ms for loaded, ms in took if loaded]
    without = [ms for loaded, ms in took if not loaded]
    differences = [a - b for a, b in zip(with_it, without, strict=True)]
    error = 1.2533 * statistics.stdev(differences) / math.sqrt(len(differences))

    report = Report()
    report.text(f"plugin_overhead: srun of true, 1 task, load {os.getloadavg()[0]:.1f}; milliseconds")
    report.header("")
    report.row("with the plugin", with_it)
    report.row("without", without)
    report.text(f"  median of the pairs' differences {median(differences):+.2f} ms, standard error {error:.2f} ms")
    report.numbers |= {
        "plugin_overhead_ms_median": median(differences),
        "plugin_overhead_ms_standard_error": error,
        "with_ms_median": median(with_it),
        "without_ms_median": median(without),
        "plugin_overhead_n": len(differences),
    }
    return report
