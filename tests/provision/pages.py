"""The commands in docs/: tests take them from the page and run them, so that what a page says is what was tried."""

import re

from vc.names import REPOSITORY

PAGES = ("install", "operate", "upgrade")
# Blocks that no machine of a rack runs, by their first words, and who runs them.
ELSEWHERE = {
    "install: apt-get build-dep": "packaging/build-deb is the test package.build_deb, and scripts/setup.sh installs what it needs",
    "install: packaging/build-wheel": "the test frameworks.wheel builds the wheel and installs it into a virtual environment",
    "upgrade: ansible-playbook": "test_muster_only.py plays it under a gang",
}


def blocks(page: str) -> list[str]:
    """All of a page's blocks of shell commands."""
    return re.findall(r"^```bash\n(.*?)^```$", (REPOSITORY / "docs" / f"{page}.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def block(page: str, begins: str, old: str = "", new: str = "") -> str:
    """The one block that begins so, with what a rack has in place of what it has not."""
    [found] = [text for text in blocks(page) if text.startswith(begins)]
    if old and found.count(old) != 1:
        raise AssertionError(f"{old} is not once in docs/{page}.md's block {begins}")
    return found.replace(old, new) if old else found
