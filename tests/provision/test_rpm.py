#!/usr/bin/python3
"""The RPM packages: what they have and ask for, and their scripts, on this machine's file system seen through an overlay.

The packages are those of build/packages, or of the directory that MUSTER_PACKAGES names.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "cluster")]

from debs import collection  # noqa: E402
from vc.names import REPOSITORY  # noqa: E402

PACKAGES = Path(os.environ.get("MUSTER_PACKAGES", REPOSITORY / "build" / "packages"))
FILES = HERE / "package_files" / "rpm"
LISTED = sorted(path.name for path in FILES.iterdir())
NAMES = [*LISTED, "muster-provisioning"]


def rpm(*words: str) -> str:
    return subprocess.run(["rpm", *words], check=True, capture_output=True, text=True, timeout=60).stdout


def package(name: str) -> str:
    found = [str(file) for file in PACKAGES.glob(f"{name}-[0-9]*.rpm") if not file.name.endswith(".src.rpm")]
    if len(found) != 1:
        raise AssertionError(f"{PACKAGES} has {len(found)} files of the package {name}: packaging/build-rpm makes them")
    return found[0]


class Contents(unittest.TestCase):
    def test_each_package_has_the_files_that_are_listed(self) -> None:
        for name in LISTED:
            with self.subTest(package=name):
                listed = re.sub(r"(/licenses/[a-z0-9-]+?)-\d[.\d]*", r"\1-VERSION", rpm("-qlp", package(name)))
                self.assertEqual("".join(line + "\n" for line in sorted(listed.splitlines())), (FILES / name).read_text())

    def test_the_collection_is_where_ansible_looks_for_it(self) -> None:
        here = "/usr/share/ansible/collections/ansible_collections/muster/appliance/"
        listed = rpm("-qlp", package("muster-provisioning")).splitlines()
        directories = {path.rpartition("/")[0] for path in listed}
        self.assertEqual({path.partition(here)[2] for path in listed if here in path and path not in directories}, collection())

    def test_no_other_package_is_built(self) -> None:
        files = [str(file) for file in PACKAGES.glob("*.rpm") if not file.name.endswith(".src.rpm")]
        self.assertEqual(sorted(rpm("-qp", "--qf", "%{NAME}\\n", *files).split()), sorted(NAMES))

    def test_the_plugin_asks_for_one_series_of_slurm(self) -> None:
        asked = rpm("-qp", "--requires", package("slurm-spank-muster")).splitlines()
        self.assertIn("slurm(x86-64) >= 22.05", asked)
        self.assertIn("slurm(x86-64) < 22.06", asked)
        self.assertIn("libslurm.so.38()(64bit)", asked)

    def test_lint_finds_nothing(self) -> None:
        files = [str(file) for file in PACKAGES.glob("*.rpm")]
        self.assertGreater(len(files), len(NAMES), "with the source")
        command = ["rpmlint", "-r", str(REPOSITORY / "packaging" / "rpm" / "rpmlint.toml")]
        command += [str(REPOSITORY / "packaging" / "rpm" / "muster.spec"), *files]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        self.assertRegex(done.stdout, r"\b0 errors, 0 warnings", done.stdout)


class Scripts(unittest.TestCase):
    """Each step in one file system: this machine's, whose changes go to a directory that is removed."""

    def setUp(self) -> None:
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.directory = Path(temporary.name)
        for part in ("upper", "work", "root"):
            (self.directory / part).mkdir()

    def run_in_root(self, script: str) -> str:
        """Runs a script whose $root is that file system; nothing that it mounts outlives it."""
        layers = f"lowerdir=/,upperdir={self.directory}/upper,workdir={self.directory}/work"
        root = self.directory / "root"
        text = f"set -e; root={root}; mount -t overlay -o {layers} overlay $root; {script}"
        command = ["unshare", "--mount", "--", "sh", "-c", text]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, f"{script}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def test_installing_removing_and_what_stays(self) -> None:
        files = shlex.join(package(name) for name in NAMES)
        install = f"rpm --root $root --nodeps -i {files}"
        plugstack = "$root/etc/slurm/plugstack.conf"
        said = self.run_in_root(
            f"""
            rm -rf $root/var/lib/rpm; mkdir -p $root/etc/slurm; echo ClusterName=x >$root/etc/slurm/slurm.conf
            before=$(cat {plugstack})
            {install}
            test "$(cat {plugstack})" = "$before"
            test ! -e $root/etc/systemd/system/multi-user.target.wants/musterd.service
            chroot $root muster --version
            chroot $root musterd --check-config

            echo 'store: rados:mine' >>$root/etc/muster/muster.yaml
            echo 'optional spank_muster.so' >>{plugstack}
            rpm --root $root --nodeps -U --replacepkgs {files}
            grep 'store: rados:mine' $root/etc/muster/muster.yaml
            grep spank_muster {plugstack}

            rpm --root $root -e {shlex.join(NAMES)} 2>&1
            test "$(cat {plugstack})" = "$before"
            cat $root/etc/muster/muster.yaml.rpmsave
            find $root/usr/bin $root/usr/sbin $root/usr/lib64 $root/usr/libexec -name '*muster*' 2>/dev/null
            """
        )
        self.assertRegex(said, r"(?m)^\d+\.\d+\.\d+\n.*: good$")
        self.assertNotIn(str(self.directory / "root" / "usr"), said)


if __name__ == "__main__":
    unittest.main(verbosity=2)
