"""What a member of a gang with --gang=warm=yes does before its program: docs/warm-starts.md.

muster-warm.pth calls begin() in every Python that a supervisor has started for such a gang. The first time, it notes what the
program imports. In a standby, a process that is to become the next generation's member, it imports the same beforehand, and
waits between the end of `site` and the program's `__main__`, which Python then runs as ever.

Nothing here is for programs to call. It imports os, sys, time, and the built-in parts of socket and resource only: what it imports,
the program has imported. wire/warm_protocol.h has what is said to the supervisor.
"""

import os
import sys
import time
from types import ModuleType
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

_VARIABLE = "MUSTER_WARM"
_HELLO, _LEARNED, _READY, _UNFIT, _GO, _STARTED = 1, 2, 3, 4, 5, 6
_MOST_TEXT = 400  # bytes of a reason
# Descriptors of this module's own stand above what programs and their libraries get.
_ABOVE = 200
# The C library, its loader, the interpreter and the libraries of numbers read these when they are loaded, unseen from Python.
_AT_LOAD = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "LC_", "LANG", "TZ", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "NUMEXPR_")
# These differ at every start. A module that looks through all variables, for those with a prefix, does not mean these.
_AT_EVERY_START = (
    b"DMLC_PS_ROOT_PORT", b"JAX_COORDINATOR_ADDRESS", b"MASTER_PORT", b"MUSTER_GENERATION", b"MUSTER_RESTART_CAUSE", b"MUSTER_TOKEN",
    b"SLURM_TASK_PID", b"TF_CONFIG", b"TORCHELASTIC_RESTART_COUNT",
)  # fmt: skip
# Seconds that all ranks but rank 0 wait: they connect to it in most programs, and who comes before it listens is refused,
# and tries again after half a second (PyTorch's store) or a whole one (gRPC, as in JAX).
_HEAD_START = 0.02
_MEMORY_STEP = 1 << 20  # bytes: growth that is worth a record
_RLIMIT_NICE = 13  # Python's resource does not name it
_PRIORITY = "the priority (policy, nice, RLIMIT_NICE, oom_score_adj)"  # which a standby has only when it becomes the program
# What /proc/self/status says that an exec inherits.
_STATUS = (
    "Umask", "Uid", "Gid", "Groups", "NoNewPrivs", "Seccomp", "SigBlk", "SigIgn", "CapInh", "CapPrm", "CapEff", "CapBnd",
    "CapAmb", "Cpus_allowed", "Mems_allowed",
)  # fmt: skip


def begin() -> None:
    """Waits for the end of `site`, when all .pth files, sitecustomize and usercustomize have been run."""
    name, _, role = os.environ.pop(_VARIABLE).partition(" ")
    site = sys.modules.get("site")
    if site is None or not name:
        return

    def last() -> None:
        try:
            _run(name, role == "standby")
        except Exception:  # the program is to run whatever happens here
            if role == "standby":
                os._exit(1)

    def then() -> None:
        if getattr(site, "ENABLE_USER_SITE", None):
            _after(site, "execusercustomize", last)
        else:
            last()

    _after(site, "execsitecustomize", then)


def _after(site: ModuleType, name: str, then: Callable[[], None]) -> None:
    original = getattr(site, name)

    def once() -> None:
        setattr(site, name, original)
        original()
        then()

    setattr(site, name, once)


def _run(name: str, standby: bool) -> None:
    import _socket

    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    connection.connect("\0" + name)
    start = _memory("muster-start")
    pieces = [
        os.readlink("/proc/self/exe").encode() + b"\0",
        os.getcwd().encode() + b"\0",
        _read("/proc/self/cmdline"),
        b"".join(one + b"\0" for one in _read("/proc/self/environ").split(b"\0") if one),
        _world(),
    ]
    _write(start, b"".join(pieces))
    observer = _Observer(_memory("muster-imports"))
    sizes = [len(piece) for piece in pieces]
    try:
        _send(connection, _HELLO, b"".join(_u32(size) for size in sizes), [start, observer.file])
    except OSError:  # this is not the process that Slurm has executed
        os.close(observer.file)
        return
    finally:
        os.close(start)
    if standby:
        _Standby(connection, observer).run()
    connection.close()
    sys.meta_path.insert(0, observer)


# ---- what the supervisor is told


def _u32(number: int) -> bytes:
    return number.to_bytes(4, sys.byteorder)


def _send(connection: Any, kind: int, body: bytes, files: List[int]) -> None:
    import _socket

    control = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, b"".join(_u32(file) for file in files))] if files else []
    connection.sendmsg([_u32(kind), body], control)


def _receive(connection: Any, kind: int) -> Tuple[bytes, List[int]]:
    """The body and the descriptors of the next packet. Without one there is no use for this process."""
    import _socket

    packet, control, _, _ = connection.recvmsg(4096, _socket.CMSG_SPACE(16), _socket.MSG_CMSG_CLOEXEC)
    if packet[:4] != _u32(kind):
        os._exit(0)
    data = b"".join(data for level, what, data in control if what == _socket.SCM_RIGHTS)
    return packet[4:], [int.from_bytes(data[at : at + 4], sys.byteorder) for at in range(0, len(data), 4)]


def _above(file: int) -> int:
    import fcntl

    above = int(fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _ABOVE))
    os.close(file)
    return above


def _memory(name: str) -> int:
    return _above(os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))


def _write(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.readall() or b""


def _read_memory(file: int) -> bytes:
    return os.pread(file, os.fstat(file).st_size, 0)


# ---- what an exec inherits: in the program of the first generation and in a standby the same, or there is no warm start


def _world() -> bytes:
    import resource

    lines = []

    def add(key: str, value: object) -> None:
        lines.append(f"{key}\t{value}\n".replace("\0", " "))

    for line in _read("/proc/self/status").decode(errors="replace").splitlines():
        key, _, value = line.partition(":")
        if key in _STATUS:
            add(key, value.strip())
    for name in sorted(os.listdir("/proc/self/ns")):
        add(f"the {name} namespace", _link(f"/proc/self/ns/{name}"))
    for key, path in (
        ("the cgroup", "cgroup"),
        ("personality", "personality"),
        ("the timer slack", "timerslack_ns"),
        ("coredump_filter", "coredump_filter"),
    ):
        try:
            add(key, _read(f"/proc/self/{path}").decode(errors="replace").strip().replace("\n", " "))
        except OSError:
            add(key, "?")
    for name in sorted(dir(resource)):
        # RLIMIT_NICE lets a standby leave its idle priority, and is set then.
        if name.startswith("RLIMIT_") and name != "RLIMIT_NICE":
            add(name, resource.getrlimit(getattr(resource, name)))
    exe = os.stat("/proc/self/exe")
    add("the interpreter", (exe.st_dev, exe.st_ino, exe.st_size, exe.st_mtime_ns))
    add("the root directory", _link("/proc/self/root"))
    add("the session", os.getsid(0))
    # Where packages are: a directory changes when one is installed in it or removed.
    for place in _places():
        try:
            add(f"{place}", os.stat(place).st_mtime_ns)
        except OSError:
            add(f"{place}", "gone")
    inherited = [name for name in os.listdir("/proc/self/fd") if 2 < int(name) < _ABOVE]
    files = [f"{name}:{_link('/proc/self/fd/' + name)}" for name in inherited if _inheritable(int(name))]
    add("the inherited descriptors", " ".join(sorted(files)))
    # What has run in this process before Python: a task prolog, or a script that has called other programs.
    add("programs before it", "yes" if resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt else "no")
    limit = resource.getrlimit(_RLIMIT_NICE)
    oom = _read("/proc/self/oom_score_adj").decode().strip()
    add(_PRIORITY, f"{os.sched_getscheduler(0)} {os.getpriority(os.PRIO_PROCESS, 0)} {limit[0]} {limit[1]} {oom}")
    return "".join(lines).encode()


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return "?"


def _inheritable(file: int) -> bool:
    try:
        return os.get_inheritable(file)
    except OSError:
        return False


def _places() -> List[str]:
    """The directories of installed packages, the standard library's first."""
    found = [os.path.dirname(os.path.abspath(os.__file__))]
    found += [os.path.abspath(path) for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")]
    return list(dict.fromkeys(found))


# ---- what the program imports


class _Observer:
    """The first of sys.meta_path: notes the name and the origin of every module that is looked for.

    It writes records into memory that the supervisor shares, until that is sealed: "+NAME\\tORIGIN\\0" for one that is found,
    "-NAME\\t\\0" for one of these that has not become a module, "=KEY\\t=VALUE\\0" and "=KEY\\t\\0" for what has changed in the
    environment, "~BYTES\\t\\0" for the memory that all imports so far have taken. In a fork of the program it takes itself away.
    """

    def __init__(self, file: int) -> None:
        self.file = file
        self._inode = os.fstat(file).st_ino
        self._pid = os.getpid()
        self._found: List[str] = []  # and not seen as a module yet
        self.environment = _environment()
        self.check: Optional[Callable[[str, Optional[str]], None]] = None
        self._memory = _own_memory()  # when it looked last
        self._taken = self._told = 0  # by imports

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        finders = list(sys.meta_path)
        if os.getpid() != self._pid or self not in finders:
            self._stop()
            return None
        spec = None
        for finder in finders[finders.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                break
        origin = None if spec is None else spec.origin or ""
        if self.check is not None:
            self.check(name, origin)
        self._note(name, origin)
        return spec

    def _note(self, name: str, origin: Optional[str]) -> None:
        records = []
        for one in self._found[:]:
            module = sys.modules.get(one)
            if module is None:
                records.append(f"-{one}\t\0".encode())
            elif getattr(getattr(module, "__spec__", None), "_initializing", False):
                continue
            self._found.remove(one)
        try:
            memory = _own_memory()
        except OSError:  # the program has no /proc any more
            return self._stop()
        if self._found:  # within an import: what the program takes for itself is not meant
            self._taken += max(0, memory - self._memory)
        self._memory = memory
        if self._taken - self._told >= _MEMORY_STEP:
            self._told = self._taken
            records.append(b"~%d\t\0" % self._told)
        now = _environment()
        if now != self.environment:
            for key in {**now, **self.environment}:
                if now.get(key) != self.environment.get(key):
                    records.append(b"=" + key + b"\t" + (b"=" + now[key] if key in now else b"") + b"\0")
            self.environment = now
        if origin is not None:
            self._found.append(name)
            records.append(f"+{name}\t{origin}\0".encode(errors="surrogateescape"))
        try:
            if records and os.fstat(self.file).st_ino == self._inode:
                _write(self.file, b"".join(records))
        except OSError:  # it is sealed, or the program has closed it
            self._stop()

    def _stop(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        try:
            if os.fstat(self.file).st_ino == self._inode:
                os.close(self.file)
        except OSError:
            pass


def _environment() -> Dict[bytes, bytes]:
    """What os.environ has. _Reads does not see this."""
    return dict(os.environ._data.items())  # type: ignore[attr-defined]


def _own_memory() -> int:
    """The bytes that this process shares with no other and no file, or nearly so."""
    _, resident, shared = _read("/proc/self/statm").split(b" ", 3)[:3]
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGESIZE")


def _free_memory(proc: str = "/proc") -> int:
    """The bytes that this process's control groups and the machine have left, with what the kernel holds of files and can drop."""
    free = [int(line.split()[1]) << 10 for line in _read(f"{proc}/meminfo").splitlines() if line.startswith(b"MemAvailable:")]
    mounts = [line.split(" ") for line in _read(f"{proc}/self/mountinfo").decode(errors="replace").splitlines()]
    for line in _read(f"{proc}/self/cgroup").decode(errors="replace").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        for mount in mounts:
            # ID PARENT DEVICE ROOT POINT OPTIONS ... - TYPE SOURCE OPTIONS
            root, point, kind, options = mount[3], mount[4], mount[-3], mount[-1].split(",")
            if kind != ("cgroup" if controllers else "cgroup2") or (controllers and "memory" not in options):
                continue
            below = os.path.relpath(group, root)
            directory = point if below == "." or below.startswith("..") else f"{point}/{below}"
            while len(directory) >= len(point):
                free += _free_in_group(directory)
                directory = os.path.dirname(directory)
            break
    return min(free, default=1 << 62)


def _free_in_group(directory: str) -> List[int]:
    """Nothing where the group has no limit."""
    for limit, usage, files in (
        ("memory.max", "memory.current", (b"active_file", b"inactive_file")),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", (b"total_active_file", b"total_inactive_file")),
    ):
        try:
            most = int(_read(f"{directory}/{limit}"))
            used = int(_read(f"{directory}/{usage}"))
            for line in _read(f"{directory}/memory.stat").splitlines():
                key, _, value = line.partition(b" ")
                used -= int(value) if key in files else 0
            return [most - used]
        except (OSError, ValueError):  # the other version, or "max"
            pass
    return []


class _Unfit(Exception):
    """Why a standby cannot become the program."""


class _Reads(Dict[bytes, bytes]):
    """The environment, which notes whose values are asked for: by name, or one after another as they are listed."""

    keys_read: Set[bytes]
    looked_through = False
    _listed: List[bytes] = []  # and not asked for yet, from the end

    def __iter__(self) -> Iterator[bytes]:
        keys = list(super().__iter__())
        self._listed = keys[::-1]
        return iter(keys)

    def __getitem__(self, key: bytes) -> bytes:
        if self._listed and self._listed[-1] == key:
            self._listed.pop()
            self.looked_through = True
        else:
            self.keys_read.add(key)
        return super().__getitem__(key)


class _Standby:
    def __init__(self, connection: Any, observer: _Observer) -> None:
        self._connection = connection
        self._observer = observer
        self._places = tuple(place + os.sep for place in _places())
        self._records: List[Tuple[str, str, bytes]] = []
        self._known: Dict[str, str] = {}  # the origins of what the program has found
        self._became: Dict[str, bool] = {}  # a module
        self._borrowed: Set[bytes] = set()  # what the program itself sets in its environment
        self._reads: Set[bytes] = set()  # the variables that imports have asked for
        self._looked_through = False  # whether an import has looked through all of them
        self._unfit = ""
        self._takes = 0  # bytes, what the program has imported

    def run(self) -> None:
        body, files = _receive(self._connection, _LEARNED)
        at = int.from_bytes(body[:4], sys.byteorder)
        then = _read_memory(files[0])[at:]
        self._read_records(_read_memory(files[1]))
        for file in files:
            os.close(file)
        world = _world()
        try:
            # When memory runs out, this goes first. The supervisor's own fork, which Linux does not trust, may not do it.
            with open("/proc/self/oom_score_adj", "w") as score:
                score.write("1000")
            _set_inherited(_pairs(then), _pairs(world))
            self._compare(then, _world())
            self._compare_memory()
            self._import()
            self._look_around()
            _send(self._connection, _READY, b"", [])
            self._become(then)
        except Exception as error:
            text = str(error) if isinstance(error, _Unfit) else f"muster_warm.py fails: {error!r}"
            _send(self._connection, _UNFIT, text.encode(errors="replace")[:_MOST_TEXT], [])
            os._exit(0)
        _send(self._connection, _STARTED, b"", [])

    def _read_records(self, data: bytes) -> None:
        for record in data.split(b"\0")[:-1]:
            kind = record[:1].decode()
            key, _, value = record[1:].partition(b"\t")
            name = os.fsdecode(key)
            self._records.append((kind, name, value))
            if kind == "+":
                self._known[name] = os.fsdecode(value)
            elif kind == "~":
                self._takes = int(name)
            if kind in "+-":
                self._became[name] = kind == "+"

    def _compare(self, then: bytes, now: bytes) -> None:
        before, after = _pairs(then), _pairs(now)
        if before.get("programs before it") == "yes":
            raise _Unfit("other programs run in the task before this one: a TaskProlog, or a script that starts it")
        for key in {**before, **after}:
            if key not in (_PRIORITY, "programs before it") and before.get(key) != after.get(key):
                raise _Unfit(f"{key} is {after.get(key)} in a standby, and {before.get(key)} in a program that is started cold")

    def _compare_memory(self) -> None:
        """The other tasks' standbys on this node are made at the same time, and the program needs some more."""
        tasks = os.environ.get("LOCAL_WORLD_SIZE", "")
        wanted = self._takes * (1 + (int(tasks) if tasks.isdigit() else 1))
        free = _free_memory()
        if free < wanted:
            raise _Unfit(
                f"{max(0, free) >> 20} MiB of memory are free, and standbys want {wanted >> 20} MiB here: "
                f"a program's imports take {self._takes >> 20} MiB"
            )

    def _installed(self, origin: str) -> bool:
        return origin in ("built-in", "frozen") or os.path.abspath(origin).startswith(self._places)

    def _check(self, name: str, origin: Optional[str]) -> None:
        """Of what modules import in turn: it is the same as in the program, and nothing of the user's."""
        known = self._known.get(name)
        if known is not None and known != origin:
            self._unfit = f"the program imports {name} from {known}, which a standby does not find"
        elif origin and not self._installed(origin):
            self._unfit = f"an installed package imports {name} from {origin}, which is none"

    def _import(self) -> None:
        self._before = _environment()
        reads = _Reads(self._before)
        reads.keys_read = self._reads
        os.environ._data = reads  # type: ignore[attr-defined]
        main = sys.modules["__main__"]
        script = sys.argv[0] if sys.argv else ""
        if os.path.isfile(script):  # without this a module would take it for an interactive Python
            main.__file__ = script
        sys.meta_path.insert(0, self._observer)
        self._observer.check = self._check
        # What modules say is said when this is the program.
        self._said = [_memory("muster-stdout"), _memory("muster-stderr")]
        self._saved = [_above(os.dup(1)), _above(os.dup(2))]
        os.dup2(self._said[0], 1)
        os.dup2(self._said[1], 2)
        for kind, key, value in self._records:
            if kind == "=":
                self._set(os.fsencode(key), value)
            elif kind == "+" and self._wanted(key, os.fsdecode(value)):
                try:
                    __import__(key)
                except BaseException as error:
                    raise _Unfit(f"importing {key} fails in a standby: {type(error).__name__}: {error}") from error
                if self._unfit:
                    raise _Unfit(self._unfit)
        self._observer.check = None
        sys.meta_path.remove(self._observer)
        main.__dict__.pop("__file__", None)
        self._looked_through = reads.looked_through
        os.environ._data = _environment()  # type: ignore[attr-defined]

    def _wanted(self, name: str, origin: str) -> bool:
        package = name.rpartition(".")[0]
        there = not package or package in sys.modules
        return name not in sys.modules and self._became[name] and there and bool(origin) and self._installed(origin)

    def _set(self, key: bytes, value: bytes) -> None:
        """What the program had set in its environment before an import, unless a module has set it here too."""
        if _environment().get(key) == (value[1:] if value else None):
            return
        self._borrowed.add(key)
        _put(key, value[1:] if value else None)

    def _look_around(self) -> None:
        for task in os.listdir("/proc/self/task"):
            children = _read(f"/proc/self/task/{task}/children").split()
            if children:
                name = _read(f"/proc/{int(children[0])}/comm").decode(errors="replace").strip()
                raise _Unfit(f"what it imports starts another process ({name})")
        for name in os.listdir("/proc/self/fd"):
            target = _link("/proc/self/fd/" + name)
            if target.startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri/")):
                raise _Unfit(f"what it imports opens a device ({target})")

    def _become(self, then: bytes) -> None:
        _, files = _receive(self._connection, _GO)
        new = dict(one.split(b"=", 1) for one in _read_memory(files[0]).split(b"\0") if b"=" in one)
        if new.get(b"RANK", b"0") != b"0":
            time.sleep(_HEAD_START)
        old = self._before
        changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
        for key in changed:
            text = os.fsdecode(key)
            if key in self._reads or (self._looked_through and key not in _AT_EVERY_START):
                raise _Unfit(f"{text} has changed, which an import had read")
            if text.startswith(_AT_LOAD):
                raise _Unfit(f"{text} has changed, which Python and its libraries read when they are loaded")
        if _packages(then) != _packages(_world()):
            raise _Unfit("packages have been installed or removed")
        for key in {*changed, *self._borrowed}:
            _put(key, new.get(key))
        self._observer.environment = _environment()
        self._leave_idle(_pairs(then)[_PRIORITY])
        for file in (1, 2):
            os.dup2(files[1] if file == 2 and len(files) > 1 else self._saved[file - 1], file)
            _write(file, _read_memory(self._said[file - 1]))
        for file in files + self._saved + self._said:
            os.close(file)

    @staticmethod
    def _leave_idle(cold: str) -> None:
        import resource

        policy, _, soft, hard, oom = cold.split(" ")
        try:
            for task in os.listdir("/proc/self/task"):
                os.sched_setscheduler(int(task), int(policy), os.sched_param(0))
            with open("/proc/self/oom_score_adj", "w") as file:
                file.write(oom)
            resource.setrlimit(_RLIMIT_NICE, (int(soft), int(hard)))
        except (OSError, ValueError) as error:
            raise _Unfit(f"it cannot leave its idle priority: {error}") from error
        now = _pairs(_world())[_PRIORITY]
        if now != cold:
            raise _Unfit(f"{_PRIORITY} is {now} in a standby, and {cold} in a program that is started cold")


def _set_inherited(cold: Dict[str, str], now: Dict[str, str]) -> None:
    """Slurm sets these for the program behind the place where the supervisor, whose child this is, has branched off."""
    import _signal  # type: ignore[import-not-found]
    import resource

    for key in [key for key in cold if cold[key] != now.get(key)]:
        if key == "Umask":
            os.umask(int(cold[key], 8))
        elif key == "SigBlk":
            _signal.pthread_sigmask(_signal.SIG_SETMASK, _signals(cold[key]))
        elif key == "SigIgn":
            for number in _signals(cold[key]) ^ _signals(now[key]):
                _signal.signal(number, _signal.SIG_IGN if number in _signals(cold[key]) else _signal.SIG_DFL)
        elif key.startswith("RLIMIT_"):
            soft, _, hard = cold[key].strip("()").partition(", ")
            try:
                resource.setrlimit(getattr(resource, key), (int(soft), int(hard)))
            except (OSError, ValueError):
                pass  # _compare names it


def _signals(mask: str) -> Set[int]:
    return {number for number in range(1, 65) if int(mask, 16) >> (number - 1) & 1}


def _pairs(world: bytes) -> Dict[str, str]:
    return dict(line.split("\t", 1) for line in world.decode().splitlines())


def _packages(world: bytes) -> List[Tuple[str, str]]:
    return [(key, value) for key, value in _pairs(world).items() if key.startswith("/") or key == "the interpreter"]


def _put(key: bytes, value: Optional[bytes]) -> None:
    if value is None:
        os.environ.pop(os.fsdecode(key), None)
    else:
        os.environ[os.fsdecode(key)] = os.fsdecode(value)
