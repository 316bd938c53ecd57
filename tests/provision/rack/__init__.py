"""Racks of systemd-nspawn machines on one machine, on which provisioning is tried."""

from vc.host import ClusterError
from vc.wait import wait_until

from .playbooks import Play
from .rack import Options, Rack
from .testing import rack_of_test

__all__ = ["ClusterError", "Options", "Play", "Rack", "rack_of_test", "wait_until"]
