"""What a rack's Prometheus says, and what the collection's dashboards and rules ask it."""

import json
import re
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import yaml

ROLE = Path(__file__).resolve().parents[2] / "provisioning" / "roles" / "monitoring" / "files"
# The name of a metric, with its labels: names of functions have a bracket behind them.
_SERIES = re.compile(r"\b(?:[a-z]+(?:_[A-Za-z0-9]+)+|up)\b(?!\()(?:\{[^}]*\})?")


def questions() -> list[str]:
    """Every expression of every dashboard, and of every rule what it is made of, for an alert that is silent has no answer."""
    found = []
    for file in sorted((ROLE / "dashboards").glob("*.json")):
        for panel in json.loads(file.read_text())["panels"]:
            found += [re.sub(r"\$[a-z]+", ".*", target["expr"]) for target in panel["targets"]]
    for group in yaml.safe_load((ROLE / "rules.yml").read_text())["groups"]:
        for rule in group["rules"]:
            series = _SERIES.findall(rule["expr"])
            assert series, rule["expr"]
            found += series
    return found


class Prometheus:
    def __init__(self, address: str) -> None:
        self._url = f"http://{address}:9090/api/v1"
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def unanswered(self, asked: list[str]) -> list[str]:
        """Those of the expressions for which there are no data."""
        return [expression for expression in asked if not self._get("query", query=expression)["result"]]

    def targets(self) -> dict[tuple[str, str], str]:
        """The health of what it asks, by job and instance."""
        active = self._get("targets", state="active")["activeTargets"]
        return {(target["labels"]["job"], target["labels"]["instance"]): target["health"] for target in active}

    def alerts(self) -> dict[str, str]:
        """Whether each rule is well, by the alert's name."""
        return {rule["name"]: rule["health"] for group in self._get("rules")["groups"] for rule in group["rules"]}

    def _get(self, what: str, **parameters: str) -> Any:
        with self._opener.open(f"{self._url}/{what}?{urllib.parse.urlencode(parameters)}", timeout=30) as answer:
            return json.load(answer)["data"]
