"""deploy/README.md says what is so: variables, volumes, images, the TLS example, a paragraph an alert."""

from __future__ import annotations

import json
import re
from pathlib import Path

from deploy.compose_file import DEPLOY, SECRET, compose, resolved

README = (DEPLOY / "README.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """The text under a heading of the second level."""
    match = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", README, re.MULTILINE | re.DOTALL)
    assert match, f"no section {title}"
    return match[1]


def test_it_names_every_variable_that_the_stack_reads() -> None:
    read = set(re.findall(r"\$\{(\w+)", (DEPLOY / "docker-compose.yml").read_text(encoding="utf-8")))
    assert set(re.findall(r"^\| `(FRUGALADS_\w+)` \|", README, re.MULTILINE)) == read


def test_every_alert_has_its_paragraph_with_its_severity() -> None:
    rules = (DEPLOY / "prometheus" / "alerts.yml").read_text(encoding="utf-8")
    alerts = re.findall(r"- alert: (\w+)\n.*?severity: (\w+)", rules, re.DOTALL)
    assert len(alerts) == rules.count("- alert:") > 0
    assert re.findall(r"^\*\*(\w+)\*\* \((\w+)\)\.", section("Alerts"), re.MULTILINE) == alerts


def test_the_tls_example_fits_the_compose_file(tmp_path: Path) -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", section("TLS"), re.DOTALL)
    override = tmp_path / "docker-compose.override.yml"
    override.write_text(example, encoding="utf-8")
    done = compose("-f", str(override), "config", "--format", "json", FRUGALADS_CLICK_SECRET=SECRET)
    assert done.returncode == 0, done.stderr
    scoring = json.loads(done.stdout)["services"]["scoring"]
    plain = resolved()["services"]["scoring"]
    assert plain["environment"].items() < scoring["environment"].items()
    assert len(scoring["volumes"]) == len(plain["volumes"]) + 1
    admin = int(scoring["healthcheck"]["test"][-2].rpartition(":")[2])
    dockerfile = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    assert f"FRUGALADS_SCORING_ADMIN_PORT={admin}" in dockerfile


def test_it_speaks_of_what_exists() -> None:
    kept = section("Run it").partition("### What is kept")[2]
    rows = re.findall(r"^\| (`[^|]+) \|", kept, re.MULTILINE)
    assert set(re.findall(r"\w+", " ".join(rows))) == set(resolved()["volumes"])
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (DEPLOY / target).exists(), target
    for image in re.findall(r"valkey/valkey:[\d.]+", README):
        assert image == resolved()["services"]["state"]["image"]
