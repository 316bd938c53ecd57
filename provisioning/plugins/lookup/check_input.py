"""The lookup `muster.appliance.check_input`: checks the operator's input, and gives the host where that was done.

playbooks/check_input.yml says why it is a lookup.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible import constants
from ansible.context import CLIARGS
from ansible.errors import AnsibleError, AnsibleLookupError
from ansible.plugins.lookup import LookupBase
from ansible.utils.display import Display
from ansible.utils.vars import load_extra_vars

from ansible_collections.muster.appliance.plugins.plugin_utils.checks import check


class LookupModule(LookupBase):
    def run(self, terms: Any, variables: Any = None, **options: Any) -> list[str]:
        # Names of hosts between commas are no files, and there is nothing to check.
        sources = [Path(source) for source in CLIARGS["inventory"] if "," not in source]
        found = check(sources, self._decrypt, set(load_extra_vars(self._loader))) if sources else []
        for finding in found:
            Display().display(str(finding), color=constants.COLOR_WARN if finding.warning else constants.COLOR_ERROR)
        if errors := sum(not finding.warning for finding in found):
            raise AnsibleLookupError(f"Mistakes in the inventory, listed above: {errors}. No host was touched.")
        return ["localhost"]

    def _decrypt(self, path: Path) -> str:
        try:
            return Path(self._loader.get_real_file(str(path))).read_text(encoding="utf-8")
        except AnsibleError as error:
            raise ValueError("encrypted, and the password is missing or another one: give it with --vault-password-file FILE") from error
        finally:
            self._loader.cleanup_all_tmp_files()
