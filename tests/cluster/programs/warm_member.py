"""The program of test_warm.py: warm_member.py DIRECTORY MODULE.

It imports MODULE, which takes its time, writes DIRECTORY/gG.rR.json as programs/member.py does, with what an exec gives a
program and with what it finds in itself, and makes steps until DIRECTORY/go is there.
"""

import importlib
import json
import locale
import os
import resource
import signal
import sys
import threading
import time

started = time.monotonic()
importlib.import_module(sys.argv[2])
imported = time.monotonic() - started

import muster  # noqa: E402


def read(path):
    with open(f"/proc/self/{path}", encoding="utf-8") as file:
        return file.read().strip()


def status(*names):
    lines = (line.partition(":") for line in read("status").splitlines())
    return {key: value.strip() for key, _, value in lines if key in names}


class Local:
    """Of __main__, as what pickle must find."""


world = {
    "argv": sys.argv,
    "orig_argv": sys.orig_argv,
    "executable": sys.executable,
    "path": sys.path,
    "flags": str(sys.flags),
    "warnoptions": sys.warnoptions,
    "main": [__name__, __file__, str(__spec__), Local.__module__, sys.modules["__main__"].Local is Local, sorted(globals())],
    "directory": os.getcwd(),
    "limits": {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")},
    "nice limit": resource.getrlimit(13),
    "status": status("Umask", "Uid", "Gid", "Groups", "SigBlk", "SigIgn", "SigCgt", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp"),
    "handlers": {int(number): str(signal.getsignal(number)) for number in signal.valid_signals()},
    "affinity": sorted(os.sched_getaffinity(0)),
    "policy": [os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)],
    "oom_score_adj": read("oom_score_adj"),
    "cgroup": read("cgroup"),
    "namespaces": {name: os.readlink(f"/proc/self/ns/{name}") for name in os.listdir("/proc/self/ns")},
    "cmdline": read("cmdline"),
    "locale": [locale.setlocale(locale.LC_ALL), sys.getfilesystemencoding(), sys.stdout.encoding],
    "streams": [[s.isatty(), s.line_buffering, s.fileno()] for s in (sys.stdin, sys.stdout, sys.stderr)],
    # 0 is the task's own in the first generation only.
    "descriptors": {n: os.readlink(f"/proc/self/fd/{n}").split(":")[0] for n in ("1", "2")},
    "inherited": [n for n in map(int, os.listdir("/proc/self/fd")) if 2 < n < 200 and os.path.exists(f"/proc/self/fd/{n}") and os.get_inheritable(n)],
    "group": os.getpgid(0) == os.getpid(),
    "session": os.getsid(0),
    "parent": os.getppid(),
    "threads": [threading.active_count(), len(os.listdir("/proc/self/task"))],
    "children": read(f"task/{os.getpid()}/children"),
    "task pid": os.environ["SLURM_TASK_PID"] == str(os.getpid()),
    "new modules": sorted(name for name in sys.modules if name.startswith("slow")),
}  # fmt: skip

gang = muster.init()
directory = sys.argv[1]
me = {"rank": gang.rank, "generation": gang.generation, "host": os.uname().nodename, "pid": os.getpid()}
target = f"{directory}/g{gang.generation}.r{gang.rank}.json"
with open(f"{target}.part", "w", encoding="utf-8") as file:
    json.dump(me | {"env": dict(os.environ), "said": {"imported": imported, "world": world}}, file)
os.rename(f"{target}.part", target)
step = 0
while not os.path.exists(f"{directory}/go"):
    step += 1
    gang.step(step)
    time.sleep(0.05)
