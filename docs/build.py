"""Builds the site of ``README.md`` and ``docs/``: ``make docs``, or ``python docs/build.py`` with mkdocs-material.

The documents link to each other and to files of the repository as they stand there. So the site is built of a copy of
all of them in their own folders, in which every link leads where it does in the repository; the builder checks each.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "site" / "source"
SITE = ROOT / "site" / "html"
CONFIG = ROOT / "docs" / "mkdocs.yml"

_LINK = re.compile(r"\]\(([^()\s#]+)(?:#[^()\s]*)?\)")
_ROW = re.compile(r"^\|.*\|$", re.MULTILINE)
_LIST = re.compile(r"^((?![-|#>] |\s|\d+\. ).+)\n(?=- |\d+\. )", re.MULTILINE)
_FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def documents(root: Path = ROOT) -> dict[Path, str]:
    """Return what the site is made of, by its path in the repository: pages with their text, other files with ""."""
    found: dict[Path, str] = {}
    waiting = [Path("README.md"), Path("docs/site.css")]
    waiting += sorted(path.relative_to(root) for path in (root / "docs").glob("*.md"))
    while waiting:
        name = waiting.pop()
        if name in found or not (root / name).is_file():
            continue
        found[name] = (root / name).read_text(encoding="utf-8") if name.suffix == ".md" else ""
        waiting += [_beside(name, link) for link in _LINK.findall(found[name]) if ":" not in link]
    return found


def for_the_builder(text: str) -> str:
    """Return a page as Python-Markdown must have it, where GitHub reads more.

    A bar in the code of a table needs no backslash there, and a list begins after an empty line.
    """
    parts = _FENCE.split(text)
    fences = _FENCE.findall(text)
    prose = [_LIST.sub(r"\1\n\n", _ROW.sub(_without_backslashes, part)) for part in parts]
    return "".join(a + b for a, b in zip(prose, [*fences, ""], strict=True))


def _without_backslashes(row: re.Match[str]) -> str:
    return re.sub(r"`[^`]*`", lambda code: code[0].replace("\\|", "|"), row[0])


def _beside(page: Path, link: str) -> Path:
    """Return where a link of a page leads, from the repository's root."""
    parts: list[str] = []
    for part in (page.parent / link).parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return Path(*parts)


def main() -> None:
    """Copy the documents, build the site, and say how to open it."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    for name, text in documents().items():
        target = SOURCE / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if text:
            target.write_text(for_the_builder(text), encoding="utf-8")
        else:
            shutil.copyfile(ROOT / name, target)
    command = [sys.executable, "-m", "mkdocs", "build", "--clean", "--strict", "--config-file", str(CONFIG)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # an advertisement of a successor
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
    if done.returncode:  # not with --quiet, which would count no warning
        raise SystemExit(f"{done.stderr}the site was not built: a warning is a link that leads nowhere, or a lost page")
    serve = "python -m http.server --bind 127.0.0.1 --directory site/html 8000"
    sys.stdout.write(f"{SITE}: to read it with its search, run {serve}, and open http://127.0.0.1:8000\n")


if __name__ == "__main__":
    main()
