#!/usr/bin/python3
"""`muster node enable-plugin`, `disable-plugin` and `check-plugin`, with this machine's Slurm and files of our own. No cluster."""

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
sys.path.insert(0, str(Path(__file__).resolve().parent))

from vc import slurm  # noqa: E402
from vc.names import REPOSITORY  # noqa: E402

BUILD = Path(os.environ.get("MUSTER_BUILD", REPOSITORY / "build"))
OTHERS = "# Site's own.\ninclude DIRECTORY/plugstack.conf.d/*.conf\noptional /opt/site/other.so  colour=red\n"


class PluginCommandTest(unittest.TestCase):
    def setUp(self) -> None:
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.directory = Path(temporary.name)
        self.plugins = self.directory / "plugins"
        self.plugins.mkdir()
        shutil.copy(BUILD / "lib" / "spank_muster.so", self.plugins)
        self.plugstack = self.directory / "plugstack.conf"
        self.others = OTHERS.replace("DIRECTORY", str(self.directory))
        self.plugstack.write_text(self.others)
        self.write_slurm_conf()

    def write_slurm_conf(self, more: str = "") -> None:
        system = next(Path("/usr/lib").glob("*/slurm-wlm"))
        text = f"ClusterName=x\nSlurmctldHost=nowhere\nplugindir={self.plugins}:{system}\n{more}"
        (self.directory / "slurm.conf").write_text(text)

    def muster(self, *words: str, conf: str = "slurm.conf") -> "subprocess.CompletedProcess[str]":
        environment = {"PATH": os.environ["PATH"], "SLURM_CONF": str(self.directory / conf)}
        words = (str(BUILD / "bin" / "muster"), "node", *words)
        return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)

    def done(self, *words: str) -> Any:
        done = self.muster(*words, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def refused(self, code: int, *words: str, **kw: str) -> str:
        done = self.muster(*words, **kw)
        self.assertEqual((done.returncode, done.stdout), (code, ""), done.stderr)
        return done.stderr

    def test_enable_adds_the_shipped_line_behind_all_others_once(self) -> None:
        os.chmod(self.plugstack, 0o640)
        os.chown(self.plugstack, 1, 2)
        first = self.done("enable-plugin")
        self.assertTrue(first["changed"])
        self.assertEqual(first["plugstack"], str(self.plugstack))
        self.assertRegex(first["slurm"], r"^\d\d\.\d\d\.\d+")
        text = self.plugstack.read_text()
        self.assertTrue(text.startswith(self.others))
        self.assertEqual(text.splitlines()[-1], slurm.shipped_line())
        facts = self.plugstack.stat()
        self.assertEqual((facts.st_mode & 0o7777, facts.st_uid, facts.st_gid), (0o640, 1, 2))
        self.assertFalse(self.done("enable-plugin")["changed"])
        self.assertEqual(self.plugstack.read_text(), text)
        self.assertEqual(sorted(path.name for path in self.directory.iterdir()), ["plugins", "plugstack.conf", "slurm.conf"])

    def test_disable_leaves_the_file_as_it_was(self) -> None:
        self.done("enable-plugin")
        self.assertTrue(self.done("disable-plugin")["changed"])
        self.assertEqual(self.plugstack.read_text(), self.others)
        self.assertFalse(self.done("disable-plugin")["changed"])

    def test_a_file_that_enable_makes_goes_with_disable(self) -> None:
        self.plugstack.unlink()
        self.done("enable-plugin")
        self.assertEqual(self.plugstack.stat().st_mode & 0o777, 0o644)
        self.done("disable-plugin")
        self.assertFalse(self.plugstack.exists())
        self.assertFalse(self.done("disable-plugin")["changed"])

    def test_a_line_with_arguments_keeps_them_and_becomes_the_last(self) -> None:
        self.plugstack.write_text(f"required /x/spank_muster.so wait=30\n{self.others}")
        self.done("enable-plugin")
        lines = self.plugstack.read_text().splitlines()
        self.assertEqual(lines[-1], "required /x/spank_muster.so wait=30")
        self.assertEqual(sum("spank_muster.so" in line for line in lines), 1)

    def test_slurms_own_name_of_the_file_is_taken_and_a_link_stays_a_link(self) -> None:
        other = self.directory / "other.conf"
        link = self.directory / "link.conf"
        other.write_text("")
        link.symlink_to("other.conf")
        self.write_slurm_conf(f"PlugStackConfig={link}  # ours\n#PlugStackConfig=/nowhere\n")
        self.done("enable-plugin")
        self.assertTrue(link.is_symlink())
        self.assertIn("spank_muster.so", other.read_text())
        self.assertEqual(self.plugstack.read_text(), self.others)

    def test_a_line_in_an_included_file_is_named(self) -> None:
        included = self.directory / "plugstack.conf.d" / "old.conf"
        included.parent.mkdir()
        included.write_text("optional spank_muster.so\n")
        self.assertIn(str(included), self.refused(1, "enable-plugin"))
        self.assertEqual(self.plugstack.read_text(), self.others)

    def test_a_plugin_of_another_release_is_refused_and_nothing_is_written(self) -> None:
        plugin = self.plugins / "spank_muster.so"
        symbols = subprocess.run(["readelf", "-Ws", plugin], check=True, capture_output=True, text=True).stdout
        found = re.search(r"([0-9a-f]{16}) +4 OBJECT .* plugin_version$", symbols, re.MULTILINE)
        assert found is not None
        image = bytearray(plugin.read_bytes())
        place = int(found[1], 16)  # .rodata is mapped where it is in the file
        image[place : place + 4] = (23 << 16 | 11 << 8).to_bytes(4, "little")
        plugin.write_bytes(image)
        for words in (["enable-plugin"], ["check-plugin"]):
            said = self.refused(1, *words)
            self.assertRegex(said, r"does not load into Slurm \d\d\.\d\d\.\d+: .*ncompatible.*install slurm-spank-muster-\d\d\.\d\d")
        self.assertEqual(self.plugstack.read_text(), self.others)

    def test_a_plugin_that_is_missing_is_refused(self) -> None:
        (self.plugins / "spank_muster.so").unlink()
        self.assertIn("spank_muster.so does not load into Slurm", self.refused(1, "enable-plugin"))
        self.assertEqual(self.plugstack.read_text(), self.others)

    def test_a_host_without_slurm_conf_is_told_so(self) -> None:
        for words in (["enable-plugin"], ["disable-plugin"]):
            self.assertIn("this host has no slurm.conf", self.refused(1, *words, conf="absent.conf"))

    def test_where_nodes_take_their_files_from_slurmctld_they_are_to_be_told(self) -> None:
        self.assertNotIn("scontrol reconfigure", self.muster("enable-plugin").stdout)
        self.write_slurm_conf("SlurmctldParameters=idle_on_node_suspend,enable_configless\n")
        for command in ("disable-plugin", "enable-plugin"):
            self.assertIn("run `scontrol reconfigure`", self.muster(command).stdout)
            self.assertNotIn("scontrol reconfigure", self.muster(command).stdout)

    def apart(self, script: str, command: str) -> list[str]:
        """What it prints with this site's files in /run/slurm/conf, as text and as JSON; `script` runs before and with /etc/slurm empty."""
        prepare = """\
mount -t tmpfs tmpfs /run && mkdir -p /run/slurm/conf && cp "$0/slurm.conf" "$0/plugstack.conf" /run/slurm/conf
mount -t tmpfs tmpfs /etc/slurm
"""
        check = '"$@"\n"$@" --json\ncmp "$0/plugstack.conf" /run/slurm/conf/plugstack.conf\n'
        words = [str(BUILD / "bin" / "muster"), "node", command]
        shell = ["unshare", "--mount", "sh", "-ec", prepare + script + check, str(self.directory), *words]
        done = subprocess.run(shell, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.split("\n", 1)

    def test_a_node_that_has_its_files_from_slurmctld_tries_the_plugin_and_leaves_them(self) -> None:
        for command in ("enable-plugin", "disable-plugin"):
            text, document = self.apart("", command)
            said = "slurmctld sends /run/slurm/conf/plugstack.conf to this host: run this command where slurmctld runs"
            self.assertEqual(text, said)
            self.assertEqual((json.loads(document)["changed"], json.loads(document)["enabled"]), (False, False))

    def test_where_slurmctlds_host_is_such_a_node_it_says_what_slurmd_has(self) -> None:
        text, document = self.apart('cp "$0/slurm.conf" /etc/slurm\n', "enable-plugin")
        self.assertIn("/etc/slurm/plugstack.conf is changed", text)
        self.assertEqual((json.loads(document)["changed"], json.loads(document)["enabled"]), (False, False))

    def test_check_changes_nothing(self) -> None:
        self.assertTrue(self.done("check-plugin")["loads"])
        self.assertEqual(self.plugstack.read_text(), self.others)

    def test_a_file_that_is_none_is_refused(self) -> None:
        self.plugstack.unlink()
        self.plugstack.mkdir()
        self.assertIn("is no regular file", self.refused(2, "enable-plugin"))


if __name__ == "__main__":
    unittest.main()
