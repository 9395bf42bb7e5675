from __future__ import annotations

import subprocess
import sys

import pytest

from services.cli import EXTRAS


def run_without(package: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process in which a package cannot be imported."""
    program = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] == {package!r}:\n"
        f"            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from services.cli import main\n"
        f"sys.exit(main({list(arguments)!r}))\n"
    )
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("package", "arguments"),
    [("scipy", ("simulate", "nowhere")), ("scipy", ("bench", "eviction", "--trace", "zipf"))],
)
def test_a_command_whose_extra_is_not_installed_names_it(package: str, arguments: tuple[str, ...]) -> None:
    done = run_without(package, *arguments)
    assert done.returncode == 2
    assert f"{package} is not installed; this command needs the extra {EXTRAS[package]}" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_module_of_ours_that_is_missing_is_no_users_mistake() -> None:
    done = run_without("loadtest", "simulate", "nowhere")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
