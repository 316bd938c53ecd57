"""Racks of systemd-nspawn machines on one machine, on which provisioning is tried."""

from vc.host import ClusterError
from vc.wait import wait_until

from .playbooks import Play
from .rack import Options, Rack

__all__ = ["ClusterError", "Options", "Play", "Rack", "wait_until"]
