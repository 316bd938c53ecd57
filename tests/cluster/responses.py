"""A cluster on which Muster does not respond, for the controls of the tests of its responses.

With a response switched off, what those tests wait for does not come. Each control does what the test of its row does, and
waits several times as long as that response takes where it is on.
"""

import harness

# Where the response is on it takes 4 s (silence) at most.
LONG = 12.0


def start_without() -> None:
    limits = {"beat": "300ms", "lease": "5m", "silence": "10m"}
    settings = {
        "time_limit_margin": "0s",
        "health_timeout": "0s",
        "health_nics": "fabric0",  # which no node has
    }
    harness.start("off", nodes=4, ceph=False, limits=limits, settings=settings, slurm={"SlurmdTimeout": "300"})
