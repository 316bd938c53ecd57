"""The module `probe`, and how far the host's clock is from this one's."""

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.action import ActionBase

ROUNDS = 3  # the first one may have to connect


class ActionModule(ActionBase):  # type: ignore[misc]
    def _offset(self) -> list[float]:
        """Its clock less this one: at least, at most. The host has looked at its clock some time between question and answer."""
        rounds = []
        for _ in range(ROUNDS):
            asked = time.time()
            said = self._low_level_execute_command("date +%s.%N", sudoable=False)
            answered = time.time()
            at = float(said["stdout"].split()[-1])
            rounds.append([at - answered, at - asked])
        return min(rounds, key=lambda round: round[1] - round[0])

    def run(self, tmp: Any = None, task_vars: Any = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        offset = self._offset()
        result.update(self._execute_module(module_name="muster.appliance.probe", module_args=self._task.args, task_vars=task_vars))
        result["offset"] = offset
        return result
