"""Runs one program inside a virtual node. Not imported: started as `python3 -I -S enter.py SPEC`, SPEC in JSON.

    init, start   the node's init process: host pid and start time
    argv, env, cwd, user (or null for root)
    cgroups       cgroup.procs files to enter first
    log           null: stay as the program's parent, pass signals and the exit status through;
                  a path: start a daemon that logs there, print its host pid, leave

The program is in all namespaces of the node and dies with it; it also dies with this process. It has no capability that the
node's init cannot have. nsenter(1) cannot pass signals on, and leaves the program running when it is killed itself.
"""

import ctypes
import json
import os
import resource
import signal
import socket
import struct
import sys
from typing import Any, NoReturn

_CLONE_NEWNS, _CLONE_NEWCGROUP, _CLONE_NEWUTS = 0x00020000, 0x02000000, 0x04000000
_CLONE_NEWIPC, _CLONE_NEWPID, _CLONE_NEWNET = 0x08000000, 0x20000000, 0x40000000
_ALL = _CLONE_NEWNS | _CLONE_NEWCGROUP | _CLONE_NEWUTS | _CLONE_NEWIPC | _CLONE_NEWPID | _CLONE_NEWNET
_PR_SET_PDEATHSIG = 1
_PR_CAPBSET_DROP = 24
_SI_KERNEL = 0x80

_FAILED = 125  # the node cannot be entered
_NOT_RUN = 127  # the program cannot be started

_PASSED_ON = {
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
    signal.SIGCONT,
}

_libc = ctypes.CDLL(None, use_errno=True)


def _fail(text: str, code: int) -> NoReturn:
    sys.stderr.write(f"vcluster: {text}\n")
    sys.stderr.flush()
    os._exit(code)


def _enter(spec: dict[str, Any]) -> None:
    try:
        pidfd = os.pidfd_open(spec["init"])
        with open(f"/proc/{spec['init']}/stat", encoding="ascii") as stat:
            fields = stat.read().rpartition(")")[2].split()
        if int(fields[19]) != spec["start"]:
            raise ProcessLookupError
        with open(f"/proc/{spec['init']}/status", encoding="ascii") as status:
            bounding = next(int(line.split()[1], 16) for line in status if line.startswith("CapBnd:"))
        with open("/proc/sys/kernel/cap_last_cap", encoding="ascii") as last:
            beyond = [number for number in range(int(last.read()) + 1) if not bounding >> number & 1]
        for path in spec["cgroups"]:
            with open(path, "w", encoding="ascii") as procs:
                procs.write("0")
        if _libc.setns(pidfd, _ALL) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        os.close(pidfd)
        for number in beyond:
            if _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    except OSError as error:
        _fail(f"node {spec['node']} cannot be entered, is it dead? ({error})", _FAILED)


def _exec(spec: dict[str, Any]) -> NoReturn:
    try:
        if spec["user"] is not None:
            import pwd  # after setns: the users are the node's

            entry = pwd.getpwnam(spec["user"])
            os.initgroups(entry.pw_name, entry.pw_gid)
            os.setgid(entry.pw_gid)
            os.setuid(entry.pw_uid)
        # Changing ids clears the death signal, so it is set last.
        if spec["log"] is None:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.chdir(spec["cwd"])
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.execvpe(spec["argv"][0], spec["argv"], spec["env"])
    except (OSError, KeyError) as error:
        _fail(f"cannot run {spec['argv'][0]} on {spec['node']}: {error}", _NOT_RUN)


def _run(spec: dict[str, Any]) -> NoReturn:
    """Waits for the program as its parent, and ends as it ended."""
    waited = _PASSED_ON | {signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    on_terminal = os.isatty(0)
    try:
        child = os.fork()
    except OSError:
        _fail(f"node {spec['node']} is dead", _FAILED)
    if child == 0:
        if not on_terminal:
            os.setpgid(0, 0)  # signals for our group come through us, once
        _exec(spec)
    while True:
        info = signal.sigwaitinfo(waited)
        if info.si_signo != signal.SIGCHLD:
            # What the terminal sends reaches the whole foreground group by itself.
            if not (on_terminal and info.si_code == _SI_KERNEL):
                os.kill(child, info.si_signo)
            continue
        pid, status = os.waitpid(child, os.WNOHANG | os.WUNTRACED)
        if pid == 0:
            continue
        if os.WIFSTOPPED(status):
            if on_terminal:
                os.kill(os.getpid(), signal.SIGSTOP)
            continue
        if os.WIFSIGNALED(status):
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            number = os.WTERMSIG(status)
            if number not in (signal.SIGKILL, signal.SIGSTOP):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            os.kill(os.getpid(), number)
        os._exit(os.waitstatus_to_exitcode(status))


def _daemon(spec: dict[str, Any]) -> NoReturn:
    """Starts the program as a child of the node's init and prints its pid as the host sees it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    first = os.fork()
    if first == 0:
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        theirs.send(b"started")  # the kernel adds our pid, translated for the receiver
        log = os.open(spec["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        _exec(spec)
    os.waitpid(first, 0)
    theirs.close()
    _, ancillary, _, _ = ours.recvmsg(16, socket.CMSG_SPACE(12))  # end of file if the daemon died first
    if not ancillary:
        _fail(f"node {spec['node']} died", _FAILED)
    pid, _, _ = struct.unpack("iii", ancillary[0][2])
    print(pid, flush=True)
    os._exit(0)


def main() -> NoReturn:
    spec = json.loads(sys.argv[1])
    _enter(spec)
    if spec["log"] is None:
        _run(spec)
    _daemon(spec)


if __name__ == "__main__":
    main()
