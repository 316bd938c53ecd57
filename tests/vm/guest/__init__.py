"""Virtual machines that QEMU emulates, with a kernel and RDMA devices of their own, joined by a network that leaves the machine nowhere."""

from vc.host import ClusterError
from vc.wait import wait_until

from .guest import Guest, Program
from .guests import Guests, Options
from .link_test import LinkTest
from .testing import guests_of_test

__all__ = ["ClusterError", "Guest", "Guests", "LinkTest", "Options", "Program", "guests_of_test", "wait_until"]
