"""Ansible against a rack, as an operator runs it: the collection installed from its archive, an inventory, ssh."""

import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vc import host
from vc.host import ClusterError
from vc.names import REPOSITORY, Names
from vc.wait import wait_until

_TIMEOUT_S = 1800.0  # of a play beside others, which take the processors first
_IDLE = str(REPOSITORY / "scripts" / "idle")  # Ansible has no deadline; the machines that it works on have
_RECAP = re.compile(r"^(\S+) +: ok=\d+ +changed=(\d+) +unreachable=(\d+) +failed=(\d+)", re.MULTILINE)
# What a task, or a handler, has said of a host; of a task that is delegated the host comes first.
_TASK = re.compile(r"^(?:TASK|RUNNING HANDLER) \[(?:muster\.appliance\.)?(.+?)\] \*+$")
_CHANGED = re.compile(r"^changed: \[([^] ]+)")
_CONFIG = """\
[defaults]
collections_path = {directory}/collections
inventory = {directory}/inventory
forks = 20
nocolor = true
localhost_warning = false
gathering = explicit
internal_poll_interval = 0.02
private_key_file = {key}
vault_password_file = {directory}/vault_password

[connection]
pipelining = true

[ssh_connection]
ssh_args = -F none -o ControlMaster=auto -o ControlPersist=120 -o ServerAliveInterval=2 -o UserKnownHostsFile={known_hosts}
control_path = {sockets}/%%h
"""


@dataclass(frozen=True)
class Play:
    """What a playbook's run has come to."""

    code: int
    output: str
    seconds: float

    @property
    def changed(self) -> dict[str, int]:
        """How many tasks have changed something, for each host."""
        return {host: int(changed) for host, changed, _, _ in _RECAP.findall(self.output)}

    @property
    def changes(self) -> set[tuple[str, str]]:
        """Each host with each task that has changed something there, as "ROLE : TASK"."""
        found: set[tuple[str, str]] = set()
        task = ""
        for line in self.output.splitlines():
            if named := _TASK.match(line):
                task = named[1]
            elif changed := _CHANGED.match(line):
                found.add((changed[1], task))
        return found


class Playbooks:
    def __init__(self, names: Names, address: Callable[[str], str], inside: Callable[[list[str]], list[str]]) -> None:
        """`address` is a machine's, `inside` makes a command one that reaches it and ends with the machines."""
        self._directory = names.directory / "ansible"
        self._ssh = names.directory / "ssh"
        self._log = names.directory / "log" / "ansible.log"
        self._address = address
        self._inside = inside

    @property
    def key(self) -> Path:
        """The private key with which root of every machine lets the host in by ssh."""
        return self._ssh / "key"

    @property
    def log(self) -> Path:
        """What all plays have said."""
        return self._log

    @property
    def known_hosts(self) -> Path:
        """The machines' own keys, for ssh."""
        return self._ssh / "known_hosts"

    def prepare(self, groups: dict[str, list[str]], variables: dict[str, Any]) -> None:
        """Installs the collection, and writes the inventory and the operator's file of variables."""
        inventory = self._directory / "inventory"
        if not inventory.exists():
            (inventory / "group_vars" / "all").mkdir(parents=True)
            host.write(self._directory / "vault_password", "of a test\n")
            settings = {"directory": self._directory, "key": self.key, "known_hosts": self.known_hosts}
            host.write(self._directory / "ansible.cfg", _CONFIG.format(sockets=self._ssh, **settings))
            self._ansible("ansible-galaxy", "collection", "build", str(REPOSITORY / "provisioning"), f"--output-path={self._directory}")
            archive = next(self._directory.glob("muster-appliance-*.tar.gz"))
            self._ansible("ansible-galaxy", "collection", "install", "--offline", f"--collections-path={self._directory / 'collections'}", str(archive))
        hosts = {name: {"ansible_host": self._address(name)} for names in groups.values() for name in names}
        tree = {
            "all": {
                "vars": {"ansible_user": "root", "ansible_python_interpreter": "/usr/bin/python3"},
                "hosts": hosts,
                "children": {group: {"hosts": dict.fromkeys(names, {})} for group, names in groups.items()},
            }
        }
        # Every JSON document is one of YAML.
        host.write(inventory / "hosts.yml", json.dumps(tree, indent=2) + "\n")
        host.write(inventory / "group_vars" / "all" / "site.yml", json.dumps(variables, indent=2) + "\n")

    def seal(self, variables: dict[str, Any]) -> None:
        """Adds variables to the prepared inventory, in a file that ansible-vault encrypts."""
        vault = self._directory / "inventory" / "group_vars" / "all" / "vault.yml"
        host.write(vault, json.dumps(variables) + "\n")
        self._ansible("ansible-vault", "encrypt", str(vault))

    def play(self, name: str, *arguments: str, at: str = "", then: Callable[[], None] | None = None) -> Play:
        """Runs a playbook of the collection. Once it has said `at`, `then` is called; without `then` it is killed."""
        return self.run(["ansible-playbook", f"muster.appliance.{name}", *arguments], at, then)

    def run(self, words: list[str], at: str = "", then: Callable[[], None] | None = None) -> Play:
        """Runs a program of Ansible's, as play() does."""
        began = time.monotonic()
        command = self._inside([_IDLE, *words])
        with open(self._log, "a+", encoding="utf-8") as log:
            print(f"== {' '.join(words)}", file=log, flush=True)
            begin = log.tell()

            def said() -> str:
                log.seek(begin)
                return log.read()

            playing = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment(), cwd="/"
            )
            what = f"the end of {words[:2]} ({self._log})"
            try:
                if at:
                    wait_until(lambda: playing.poll() is not None or at in said(), _TIMEOUT_S, what)
                    if playing.poll() is None:
                        (then or playing.kill)()
                wait_until(lambda: playing.poll() is not None, _TIMEOUT_S, what)
            finally:
                playing.kill()
                code = playing.wait()
            return Play(code, said(), time.monotonic() - began)

    def module(self, host: str, name: str, arguments: dict[str, Any], *options: str) -> dict[str, Any]:
        """What a module of the collection has returned on a host."""
        command = ["ansible", host, f"--module-name=muster.appliance.{name}", f"--args={json.dumps(arguments)}", *options]
        done = subprocess.run(
            self._inside([_IDLE, *command]),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=self._environment(),
            timeout=_TIMEOUT_S,
            check=False,
            cwd="/",
        )
        said = done.stdout.partition("=>")[2]
        if not said:
            raise ClusterError(f"the module {name} has no result ({done.returncode}): {done.stdout}{done.stderr}")
        return dict(json.loads(said))

    def validate(self) -> tuple[Play, dict[str, Any]]:
        """Runs validate.yml, which fails where something is wrong, and gives what it has found: `{ok, checked, findings, unchecked}`."""
        file = self._directory / "findings.json"
        file.unlink(missing_ok=True)
        play = self.play("validate", "-e", f"json={file}")
        if not file.exists():
            raise ClusterError(f"validate has found nothing out ({play.code}):\n{play.output}")
        return play, json.loads(file.read_text())

    def _ansible(self, *command: str) -> None:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=self._environment(), timeout=180, check=False
        )
        if done.returncode != 0:
            raise ClusterError(f"`{' '.join(command)}` failed ({done.returncode}): {done.stderr.strip()}")

    def _environment(self) -> dict[str, str]:
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        config = str(self._directory / "ansible.cfg")
        idle = {name: os.environ[name] for name in ("MUSTER_IDLE_CGROUP",) if name in os.environ}
        return idle | {"PATH": path, "HOME": str(self._directory), "LANG": "C.UTF-8", "ANSIBLE_CONFIG": config}
