"""Would coordexp work with the newest versions that pyproject.toml allows?

python -m tests.upgrade.check                          # in a fresh environment: versions, names, the fast tests
python -m tests.upgrade.check -- tests/unit/cluster    # the same, with other arguments for pytest
python -m tests.upgrade.check --list-only              # the private names, in this environment

It ends with 1 where a private name is gone or not listed, or a test fails; with 2 where the packages cannot be had.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from importlib.metadata import distributions, version
from pathlib import Path

ROOT = Path(__file__).parents[2]
FAST_TESTS = ("-m", "not slow and not gpu")
PINS_ARE_INSTALLED = "tests/unit/test_security.py::test_every_package_of_ours_is_pinned"  # the newest versions are not


def list_names() -> int:
    """Print every private name, whether it still is, and where it is used; return how many are gone or not listed."""
    from tests.upgrade.names import NAMES, PACKAGES, moved
    from tests.upgrade.used import find_uses, unlisted

    uses = find_uses(ROOT)
    wrong = 0
    for package in PACKAGES:
        print(f"{package} {version(package)}")
        for name in NAMES:
            if name.path.partition(".")[0] == package:
                problem = moved(name)
                wrong += problem is not None
                files = sorted({use.file for use in uses if use.is_by(name)})
                print(f"  {'there' if problem is None else 'GONE '}  {name.path}  ({', '.join(files)})")
                print(f"         {problem or name.used_for}")
    for use in unlisted(uses, NAMES):
        wrong += 1
        print(f"NOT LISTED in tests/upgrade/names.py: {use.path} ({use.file}:{use.line})")
    print(f"{len(NAMES)} private names; {wrong} gone or not listed")
    return wrong


def differences(pinned: str, installed: dict[str, str]) -> list[str]:
    """Return a line for each package of another version than a file of pins says; those not installed are left out.

    Args:
        pinned: lines ``name==version``.
        installed: versions by normalised name.
    """
    pins = dict(line.split("==", 1) for line in pinned.split() if "==" in line)
    wanted = {normalised(name): value for name, value in pins.items()}
    lines = [
        f"{name} {wanted[name]} -> {found}" if name in wanted else f"{name} {found} (not pinned)"
        for name, found in installed.items()
        if wanted.get(name) != found.partition("+")[0]
    ]
    return sorted(lines)


def normalised(name: str) -> str:
    """Return a package's name as PyPI compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _print_versions() -> None:
    installed = {normalised(found.name): found.version for found in distributions()}
    for ours in ("coordexp", "pip", "setuptools"):
        installed.pop(ours, None)
    lines = differences((ROOT / "constraints.txt").read_text(encoding="utf-8"), installed)
    print(f"{len(lines)} of {len(installed)} packages are not as constraints.txt has them")
    print("".join(f"  {line}\n" for line in lines), end="", flush=True)


def _check_fresh(arguments: list[str]) -> int:
    """Make an environment of the newest versions allowed, and check there."""
    with tempfile.TemporaryDirectory(prefix="coordexp-upgrade-") as folder:
        python = str(Path(folder) / "bin" / "python")
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        # In one request, so that torch is chosen together with all that bounds it.
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "torch", "-e", ".[dev]"]
        if subprocess.run(pip, cwd=ROOT, check=False).returncode:
            print("pip finds no set of versions, or no package registry; see its message above", file=sys.stderr)
            return 2
        listed = subprocess.run([python, "-m", "tests.upgrade.check", "--installed"], cwd=ROOT, check=False).returncode
        tests = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--deselect", PINS_ARE_INSTALLED, *arguments]
        tested = subprocess.run(tests, cwd=ROOT, check=False).returncode
    return 1 if listed or tested else 0


def main() -> int:
    """Run as the command line says; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--list-only", action="store_true", help="the private names in this environment")
    how.add_argument("--installed", action="store_true", help="versions and private names in this environment")
    parser.add_argument("tests", nargs="*", default=list(FAST_TESTS), help="arguments for pytest, after --")
    given = parser.parse_args()
    if given.installed:
        _print_versions()
    if given.installed or given.list_only:
        return 1 if list_names() else 0
    return _check_fresh(given.tests)


if __name__ == "__main__":
    sys.exit(main())
