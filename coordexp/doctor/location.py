"""Where a checkpoint lies: in the package, in a directory, in the hub's cache, or still on the hub."""

import re
import socket
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

from coordexp.config.schema import Model
from coordexp.errors import CheckpointError
from coordexp.model.checkpoint.directory import INDEX_FILE, WEIGHTS_FILE, read_json
from coordexp.model.checkpoint.find import EMBEDDED, TINY_BASE, find_checkpoint

HUB_SECONDS = 3.0
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.\-]*/[\w.\-]+")
_FILES: tuple[str, ...] = ("config.json", "tokenizer_config.json", "preprocessor_config.json")


@dataclass(frozen=True)
class Location:
    """Where a checkpoint is.

    Attributes:
        directory: of its files; None for a hub id of which nothing is in the cache.
        missing: files that a run would download first.
        is_hub: whether ``model.path`` is a hub id.
    """

    directory: Path | None
    missing: tuple[str, ...]
    is_hub: bool


def locate(model: Model) -> Location:
    """Find a checkpoint without asking the network.

    Raises:
        CheckpointError: if there is no such directory, or it is no dense Qwen3-VL.
    """
    if model.path == EMBEDDED:
        return Location(TINY_BASE, (), is_hub=False)
    directory = Path(model.path).expanduser()
    if directory.exists() or not _HUB_ID.fullmatch(model.path):
        return Location(find_checkpoint(model.path, weights=False), (), is_hub=False)
    cached = _cached(model)
    return Location(cached, () if cached is None else _missing(cached), is_hub=True)


def hub_answers() -> bool:
    """Tell whether the hub's host takes connections, within three seconds."""
    if is_offline():
        return False
    parts = urlsplit(constants.ENDPOINT)
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((parts.hostname or "", port), timeout=HUB_SECONDS).close()
    except (OSError, ValueError):
        return False
    return True


def is_offline() -> bool:
    """Tell whether the environment forbids to ask the hub."""
    return constants.HF_HUB_OFFLINE


def cache_directory() -> Path:
    """Return where the hub's files are kept."""
    return Path(constants.HF_HUB_CACHE)


def _cached(model: Model) -> Path | None:
    try:
        return Path(snapshot_download(model.path, revision=model.revision, local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    except (HFValidationError, OSError, ValueError) as error:
        raise CheckpointError(f"{model.path}: the hub's cache cannot be read ({error})") from None


def _missing(directory: Path) -> tuple[str, ...]:
    """Return what of a checkpoint is not in the cache yet; the weights as their index names them."""
    wanted: list[str] = [*_FILES]
    if (directory / INDEX_FILE).is_file() and not (directory / WEIGHTS_FILE).is_file():
        weight_map = read_json(directory / INDEX_FILE).get("weight_map")
        wanted += sorted({str(file) for file in weight_map.values()}) if isinstance(weight_map, dict) else []
    else:
        wanted.append(WEIGHTS_FILE)
    return tuple(name for name in wanted if not (directory / name).is_file())
