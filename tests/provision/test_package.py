#!/usr/bin/python3
"""The Debian packages on machines with a real Slurm: what they bring, start, bind to, keep and take away.

The packages are those of build/packages, or of the directory that MUSTER_PACKAGES names.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "cluster")]

from debs import collection, field, package, repack, stand_in  # noqa: E402
from pages import block  # noqa: E402
from rack import Rack, rack_of_test, wait_until  # noqa: E402
from vc.names import REPOSITORY  # noqa: E402

PACKAGES = Path(os.environ.get("MUSTER_PACKAGES", REPOSITORY / "build" / "packages"))
FILES = HERE / "package_files" / "deb"  # what each package has
PLUGIN = "slurm-spank-muster-22.05"
PLUGSTACK = "/etc/slurm/plugstack.conf"
NEXT_SLURM = "24.11.5-1"
ALL = ["muster", "muster-client", "slurm-spank-muster", PLUGIN, "libmuster0", "libmuster-dev", "python3-muster", "muster-train"]
SLEEP = "/usr/bin/sleep"
APT_S = 300.0


class Contents(unittest.TestCase):
    def test_each_package_has_the_files_that_are_listed(self) -> None:
        self.assertEqual(sorted(path.name for path in FILES.iterdir()), sorted(ALL))
        for name in ALL:
            with self.subTest(package=name):
                listed = subprocess.run(["dpkg-deb", "-c", package(PACKAGES, name)], check=True, capture_output=True, text=True).stdout
                found = [re.split(r" \d\d:\d\d ", line, maxsplit=1)[1][1:] for line in listed.splitlines()]
                found = sorted(path for path in found if not path.endswith("/"))
                self.assertEqual("\n".join(found) + "\n", (FILES / name).read_text())

    def test_the_collection_is_where_ansible_looks_for_it(self) -> None:
        listed = subprocess.run(["dpkg-deb", "-c", package(PACKAGES, "muster-provisioning")], check=True, capture_output=True, text=True).stdout
        here = "/usr/share/ansible/collections/ansible_collections/muster/appliance/"
        found = {line.partition(here)[2] for line in listed.splitlines() if here in line and not line.endswith("/")}
        self.assertEqual(found, collection())

    def test_each_package_of_programs_has_their_debug_symbols_beside_it(self) -> None:
        have = set()
        for name in [*ALL, "muster-provisioning"]:
            ids = self.build_ids(package(PACKAGES, name), "")
            if not ids:
                continue
            have.add(name)
            symbols = package(PACKAGES, f"{name}-dbgsym")
            with self.subTest(package=symbols.name):
                self.assertEqual(field(symbols, "Depends"), f"{name} (= {field(symbols, 'Version')})")
                self.assertEqual(set(field(symbols, "Build-Ids").split()), set(ids))
                found = self.build_ids(symbols, "-S")
                self.assertEqual(set(found), set(ids))
                for number, (path, sections) in found.items():
                    self.assertEqual(path, f"usr/lib/debug/.build-id/{number[:2]}/{number[2:]}.debug")  # where gdb looks
                    self.assertRegex(sections, r"\.debug_line")
        self.assertEqual(have, {"muster", "muster-client", PLUGIN, "libmuster0", "muster-train"})
        self.assertEqual({field(path, "Package") for path in PACKAGES.glob("*-dbgsym_*.deb")}, {f"{name}-dbgsym" for name in have})

    def build_ids(self, deb: Path, also: str) -> dict[str, tuple[str, str]]:
        """Of the ELF files of a package: their paths, and what else readelf says of them."""
        found = {}
        with tempfile.TemporaryDirectory() as temporary:
            subprocess.run(["dpkg-deb", "-x", deb, temporary], check=True)
            for path in Path(temporary).rglob("*"):
                if path.is_symlink() or not path.is_file() or not path.read_bytes().startswith(b"\x7fELF"):
                    continue
                said = subprocess.run(["readelf", "-nW", *also.split(), path], check=True, capture_output=True, text=True).stdout
                [number] = re.findall(r"Build ID: ([0-9a-f]+)", said)
                found[number] = (str(path.relative_to(temporary)), said)
        return found

    def test_the_plugin_binds_to_one_series_of_slurm(self) -> None:
        depends = field(package(PACKAGES, PLUGIN), "Depends").split(", ")
        for bound in (">= 22.05~", "<< 22.06~"):
            self.assertIn(f"slurm-wlm-basic-plugins ({bound}) | slurm-smd ({bound})", depends)
        # SchedMD's package has the library itself.
        [library] = [one for one in depends if one.startswith("libslurm")]
        self.assertRegex(library, r"^libslurm38 \(>= [0-9.]+\) \| slurm-smd \(>= 22\.05~\)$")
        # What a login node, which has no slurmd, has too.
        self.assertNotIn("slurmd", " ".join(depends))

    def test_lint_finds_nothing(self) -> None:
        changes = [str(path) for path in PACKAGES.glob("*.changes")]
        self.assertEqual(len(changes), 1)
        done = subprocess.run(["lintian", "--allow-root", "--fail-on", "error,warning", *changes], capture_output=True, text=True, timeout=300)
        self.assertEqual((done.returncode, done.stdout), (0, ""))

    def test_a_library_for_programs_needs_libc_alone(self) -> None:
        self.assertRegex(field(package(PACKAGES, "libmuster0"), "Depends"), r"^libc6 \(>= [0-9.]+\)$")


class Installed(unittest.TestCase):
    """One rack for all tests of this class; each takes a machine of its own but for the one with a gang."""

    rack: Rack
    made = 0

    @classmethod
    def setUpClass(cls) -> None:
        for name in ALL:
            package(PACKAGES, name)
        cls.rack = rack_of_test("p", nodes=1, debs=str(PACKAGES))
        cls.addClassCleanup(cls.rack.stop)
        cls.rack.start()

    def machine(self) -> str:
        """A fresh one, whose Slurm is its own."""
        type(self).made += 1
        name = f"n{20 + self.made}"
        self.rack.add(name)
        self.addCleanup(self.rack.kill, name)
        self.run_on(name, "cp /etc/slurm/slurm.conf /etc/slurm/slurm.conf.site")
        self.add_source(name)
        return name

    def add_source(self, name: str) -> None:
        self.run_on(name, f"echo '{self.rack.mirror.source}' >/etc/apt/sources.list.d/muster.list")

    def run_on(self, name: str, script: str) -> str:
        return self.rack.run(name, ["sh", "-ec", script], check=True, timeout=APT_S).stdout

    def apt(self, name: str, words: str) -> str:
        return self.run_on(name, f"export DEBIAN_FRONTEND=noninteractive; apt-get -q update; apt-get -q -y {words}")

    def tree(self, name: str, top: str) -> dict[str, str]:
        lines = self.run_on(name, f"find {top} -type f -exec sha256sum '{{}}' + | sort -k2").splitlines()
        return {path: digest for digest, path in (line.split(maxsplit=1) for line in lines)}

    def publish(self, make: Any) -> None:
        """Serves this test's packages instead; those of the build again afterwards."""
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        make(Path(temporary.name))
        self.rack.mirror.publish(Path(temporary.name))
        self.addCleanup(self.rack.mirror.publish, PACKAGES)

    def test_it_starts_nothing_and_changes_nothing_of_slurm_until_the_operator_says_so(self) -> None:
        name = self.machine()
        before = self.tree(name, "/etc")
        self.install_as_the_page_says(name)
        self.apt(name, f"install {' '.join(ALL)}")
        after = self.tree(name, "/etc")
        changed = {path for path in before if after.get(path) != before[path]}
        self.assertEqual([path for path in changed if path.startswith(("/etc/slurm", "/etc/munge", "/etc/systemd"))], [])
        self.assertIn("/etc/muster/muster.yaml", after)
        self.assertEqual(self.run_on(name, "systemctl is-active musterd || :; systemctl is-enabled musterd || :"), "inactive\ndisabled\n")
        self.assertNotIn("--gang", self.run_on(name, "srun --help"))
        self.assertIn("0.1.0", self.run_on(name, "muster --version; musterd --version"))
        self.run_on(name, "musterd --check-config; python3 -c 'import muster'; muster-run --help; muster-train --help; bash -n /usr/share/bash-completion/completions/muster")

        self.run_on(name, block("install", "muster node enable-plugin"))
        self.assertIn("--gang", self.run_on(name, "srun --help"))
        self.start_musterd(name)
        self.assertEqual(json.loads(self.run_on(name, "muster --json status"))["gangs"], [])
        # All programs that it starts are where it looks for them.
        self.run_on(name, "pgrep -x muster-door")
        self.run_on(name, "cd /usr/libexec/muster && test -x muster-files -a -x muster-health -a -x muster-slurm -a -x muster-stacks")

    def install_as_the_page_says(self, name: str) -> None:
        home = self.rack.shared("home") / "packages"
        home.mkdir()
        self.addCleanup(shutil.rmtree, home)
        for one in PACKAGES.glob("*.deb"):
            shutil.copy(one, home)
        self.run_on(name, "echo 'APT::Get::Assume-Yes \"true\";' >/etc/apt/apt.conf.d/yes; apt-get -q update")
        self.run_on(name, "export DEBIAN_FRONTEND=noninteractive; cd /home/packages; " + block("install", "apt-get install ./muster_"))
        self.run_on(name, "rm /etc/apt/apt.conf.d/yes")

    def start_musterd(self, name: str) -> None:
        """As the page says it for a directory that all machines share."""
        self.run_on(name, block("install", "mkdir -p /etc/systemd", old="/PATH\\n", new="/srv/checkpoints\\n"))
        self.run_on(name, block("install", "echo 'store: ", old="rados:muster", new="dir:/srv/checkpoints"))

    def test_in_a_chroot_nothing_is_started(self) -> None:
        """As images are made: what runs outside is not asked, and nothing runs inside."""
        name = self.machine()
        self.run_on(
            name,
            "mkdir /chroot; mount -t tmpfs tmpfs /chroot; cd /chroot; mkdir upper work root;"
            " mount -t overlay -o lowerdir=/,upperdir=upper,workdir=work overlay root; mount -t proc proc root/proc",
        )
        before = self.tree(name, "/etc")
        self.run_on(name, f"export DEBIAN_FRONTEND=noninteractive; chroot /chroot/root sh -ec 'apt-get -q update; apt-get -q -y install {' '.join(ALL)}'")
        self.assertIn("0.1.0", self.run_on(name, "chroot /chroot/root musterd --version"))
        self.assertEqual(self.tree(name, "/etc"), before)
        self.assertEqual(self.run_on(name, "find /proc/[0-9]*/root -maxdepth 0 -lname '/chroot*' 2>/dev/null || :"), "")
        self.assertEqual(self.run_on(name, "systemctl list-unit-files --no-legend 'muster*' || :; pgrep -l muster || :"), "")

    def test_removing_it_leaves_slurm_as_it_was_and_purging_it_spares_checkpoints(self) -> None:
        name = self.machine()
        before = self.tree(name, "/etc/slurm")
        self.apt(name, "install muster")
        self.run_on(name, "echo 'log_level: debug' >>/etc/muster/muster.yaml; muster node enable-plugin; systemctl enable --now musterd")
        self.assertNotEqual(self.tree(name, "/etc/slurm"), before)
        self.apt(name, f"remove muster muster-client slurm-spank-muster {PLUGIN}")
        self.assertEqual(self.tree(name, "/etc/slurm"), before)
        self.assertEqual(self.rack.run(name, ["srun", "--help"]).stderr, "")
        self.assertEqual(self.run_on(name, "pgrep -x 'musterd|muster-door' || echo none"), "none\n")
        self.assertIn("log_level: debug", self.run_on(name, "cat /etc/muster/muster.yaml"))

        self.run_on(name, "mkdir -p /var/lib/muster/empty /var/lib/muster/space && echo x >/var/lib/muster/space/checkpoint")
        self.apt(name, "purge muster muster-client")
        left = self.run_on(name, "find /var/lib/muster /etc/muster -type f 2>/dev/null | sort")
        self.assertEqual(left, "/var/lib/muster/.number\n/var/lib/muster/space/checkpoint\n", "the store's number goes with its checkpoints")
        self.assertEqual(self.run_on(name, "ls /var/lib/muster"), "space\n")
        self.assertEqual(self.run_on(name, "find /usr /lib/systemd -name '*muster*' -not -path '*/share/doc/*'"), "")

        self.apt(name, "install muster")
        self.run_on(name, "rm -r /var/lib/muster/space")
        self.apt(name, "purge muster muster-client")
        self.assertEqual(self.run_on(name, "ls -d /var/lib/muster || echo gone"), "gone\n")

    def test_apt_keeps_slurm_and_its_plugin_together(self) -> None:
        name = self.machine()
        self.apt(name, "install muster")
        slurm = ["slurmd", "slurm-client"]

        def newer(directory: Path) -> None:
            stand_in(directory, "slurm-wlm-basic-plugins", NEXT_SLURM)
            for one in slurm:
                stand_in(directory, one, NEXT_SLURM, depends=f"slurm-wlm-basic-plugins (= {NEXT_SLURM})")

        def newer_with_plugin(directory: Path) -> None:
            newer(directory)
            old = field(package(PACKAGES, "muster"), "Version")
            words = {"22.05": "24.11", "22.06": "24.12"}
            for one in ALL:
                repack(package(PACKAGES, one), directory, {old: "%", **words, "%": old.replace("22.05", "24.11")})

        self.publish(newer)
        held, taken = block("upgrade", "apt-get --simulate upgrade").splitlines()
        said = self.run_on(name, f"apt-get -q update; {held}")
        kept = said.partition("kept back:")[2].partition("upgraded")[0].split()
        self.assertLessEqual({*slurm, "slurm-wlm-basic-plugins"}, set(kept), said)
        refused = self.rack.run(name, ["apt-get", "-y", "--no-remove", "install", f"slurmd={NEXT_SLURM}"], timeout=APT_S)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn(PLUGIN, refused.stdout + refused.stderr)
        self.assertIn("remove is disabled", refused.stderr)

        self.publish(newer_with_plugin)
        said = self.run_on(name, f"apt-get -q update; {taken.replace('apt-get', 'apt-get --simulate')}")
        for one in [*slurm, "slurm-wlm-basic-plugins", "slurm-spank-muster-24.11", "muster"]:
            self.assertRegex(said, rf"(?m)^Inst {re.escape(one)} ")
        self.assertEqual(re.findall(r"(?m)^Remv (\S+)", said), [PLUGIN])

    def test_it_is_installed_beside_schedmds_packages_of_slurm(self) -> None:
        """Their slurm-smd has libslurm's file, and conflicts with Debian's plugins."""
        name = self.machine()
        self.apt(name, "purge slurm-wlm-basic-plugins")
        library = "/usr/lib/x86_64-linux-gnu/libslurm.so.38"  # libslurm-dev has it on this machine

        def of_schedmd(directory: Path) -> None:
            files = {library: Path(library).read_bytes()}
            stand_in(directory, "slurm-smd", "22.05.11-1", conflicts="slurm-wlm-basic-plugins", files=files)
            for one in ALL:
                shutil.copy(package(PACKAGES, one), directory)

        self.publish(of_schedmd)
        self.apt(name, "install slurm-smd")
        self.apt(name, "install --no-install-recommends muster")
        installed = self.run_on(name, "dpkg-query -W -f '${Package} ${db:Status-Status}\\n' '*slurm*'").splitlines()
        self.assertEqual(
            sorted(one for one in installed if one.endswith(" installed")),
            [f"{one} installed" for one in ("slurm-smd", "slurm-spank-muster", PLUGIN)],
        )
        self.assertNotIn("not found", self.run_on(name, "ldd /usr/libexec/muster/muster-slurm"))
        # Where SchedMD's Slurm looks for plugins.
        self.run_on(name, "test -e /usr/lib/x86_64-linux-gnu/slurm/spank_muster.so")

    def test_an_upgrade_restarts_musterd_under_a_gang_that_runs_on(self) -> None:
        hosts = ["ctl", "n1"]
        for name in hosts:
            self.add_source(name)
            self.apt(name, "install muster")
            self.start_musterd(name)
            # What stands still for a second on a busy machine is no lost node here.
            self.run_on(name, "printf 'lease: 40s\nsilence: 60s\n' >>/etc/muster/muster.yaml; systemctl restart musterd")
            self.run_on(name, "muster node enable-plugin")
        gang = self.rack.popen("ctl", ["srun", "-N1", "-n2", "--gang", SLEEP, "4714"], user="trainer")
        self.addCleanup(gang.wait)
        self.addCleanup(gang.kill)
        found = ["sh", "-c", f"pgrep -fx '{SLEEP} 4714' | sort"]
        members = wait_until(
            lambda: len(lines := self.rack.run("n1", found).stdout.split()) == 2 and lines, 180, "two members", interval=0.2
        )
        main = "systemctl show -P MainPID musterd"
        daemons = [self.run_on(name, main) for name in hosts]

        old = field(package(PACKAGES, "muster"), "Version")
        self.publish(lambda directory: [repack(package(PACKAGES, name), directory, {old: "0.1.1"}, shipped="# new\n") for name in ALL])
        for name in hosts:
            edited = self.run_on(name, "cat /etc/muster/muster.yaml")
            self.run_on(name, block("upgrade", "apt-get update", old="apt-get install", new="apt-get -y install"))
            self.assertIn("0.1.1", self.run_on(name, "dpkg-query -W -f '${Version}' muster"))
            self.assertEqual(self.run_on(name, "cat /etc/muster/muster.yaml"), edited)
            self.assertIn("# new", self.run_on(name, "cat /etc/muster/muster.yaml.dpkg-dist"))
        for name, daemon in zip(hosts, daemons, strict=True):
            self.assertNotEqual(self.run_on(name, main), daemon)
        self.assertEqual(self.rack.run("n1", found).stdout.split(), members)

        def linked() -> Any:
            done = self.rack.run("n1", ["muster", "--json", "status", "--uid", "20001"])
            gangs = json.loads(done.stdout)["gangs"] if done.returncode == 0 else []
            return gangs and gangs[0]["state"] == "running" and gangs[0]

        status = wait_until(linked, 180, "the gang under the new musterd", interval=0.2)
        self.assertEqual((status["generation"], status["restarts"]), (1, 0))
        self.run_on("n1", f"kill {members[0]}")
        wait_until(
            lambda: len(lines := self.rack.run("n1", found).stdout.split()) == 2 and not set(lines) & set(members),
            180,
            "the next generation",
            interval=0.2,
        )


if __name__ == "__main__":
    unittest.main(verbosity=2)
