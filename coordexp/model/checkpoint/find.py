"""Find a checkpoint: in the package, in a directory, in the hub's cache, or on the hub itself."""

import re
import socket
from pathlib import Path
from urllib.parse import urlsplit

from huggingface_hub import constants, hf_hub_download, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from coordexp.errors import CheckpointError
from coordexp.model.checkpoint.directory import check_config, wanted_files, weight_files

EMBEDDED = "embedded"  # the small base that ships with the package
TINY_BASE = Path(__file__).parents[1] / "tiny" / "tiny_base"

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.\-]*/[\w.\-]+")
_HUB_SMALL_FILES = ["*.json", "*.jinja", "*.txt"]
_HUB_FILES = [*_HUB_SMALL_FILES, "*.safetensors"]
_HUB_SECONDS = 3.0
_HUB_ERRORS = (HfHubHTTPError, HFValidationError, OSError)  # the offline and not-found errors are OSErrors too


def find_checkpoint(path_or_id: str | Path, *, revision: str | None = None, weights: bool = True) -> Path:
    """Return the directory of a Qwen3-VL checkpoint, downloading a hub id, with all its files checked.

    Args:
        path_or_id: ``embedded``, a directory or a hub id.
        revision: of a hub id.
        weights: also fetch and check the weights; without, only configuration, tokenizer and processor.

    Raises:
        CheckpointError: if it is missing, damaged, or not a dense Qwen3-VL, or ``revision`` would have no effect.
    """
    if is_hub_id(path_or_id):
        directory = _download(str(path_or_id), revision=revision, files=_HUB_FILES if weights else _HUB_SMALL_FILES)
    else:
        directory = TINY_BASE if str(path_or_id) == EMBEDDED else Path(path_or_id).expanduser()
        if not directory.is_dir():
            raise CheckpointError(
                f"{path_or_id}: no such checkpoint; expected embedded, a directory or a hub id (owner/name)"
            )
        if revision is not None:
            raise CheckpointError(f"{path_or_id}: a local directory has no revision {revision!r}; leave it out")
    check_config(directory)
    if weights:
        weight_files(directory)
    return directory


def is_hub_id(path_or_id: str | Path) -> bool:
    """Return whether this names a checkpoint on the hub; a local path of the same name comes first."""
    return _HUB_ID.fullmatch(str(path_or_id)) is not None and not Path(path_or_id).expanduser().exists()


def cached_checkpoint(hub_id: str, *, revision: str | None = None) -> tuple[Path | None, list[str]]:
    """Look for a hub id in the local cache, without asking the network.

    Returns:
        The directory, None if nothing of it is there; and the files that would still be downloaded.

    Raises:
        CheckpointError: if the cache cannot be read.
    """
    try:
        directory = Path(snapshot_download(hub_id, revision=revision, local_files_only=True))
    except LocalEntryNotFoundError:
        return None, []
    except (HFValidationError, OSError, ValueError) as error:
        raise CheckpointError(f"{hub_id}: the hub's cache cannot be read ({error})") from None
    return directory, [name for name in wanted_files(directory) if not (directory / name).is_file()]


def hub_answers() -> bool:
    """Return whether the hub's host takes connections, within three seconds."""
    parts = urlsplit(constants.ENDPOINT)
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((parts.hostname or "", port), timeout=_HUB_SECONDS).close()
    except (OSError, ValueError):
        return False
    return True


def _download(hub_id: str, *, revision: str | None, files: list[str]) -> Path:
    try:
        # The configuration first: another model must not cost the download of its weights.
        config = hf_hub_download(hub_id, "config.json", revision=revision)
        check_config(Path(config).parent)
        return Path(snapshot_download(hub_id, revision=revision, allow_patterns=files))
    except _HUB_ERRORS as error:
        name = hub_id if revision is None else f"{hub_id} at revision {revision}"
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        if isinstance(error, LocalEntryNotFoundError):  # its own words are three sentences
            why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "the hub cannot be reached"
            reason = f"it is not in the cache {constants.HF_HUB_CACHE}, and {why}"
        raise CheckpointError(f"{name}: no such directory, and the hub does not give it ({reason})") from None
