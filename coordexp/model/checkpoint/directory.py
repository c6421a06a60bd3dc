"""A checkpoint directory: found in the package, on disk, in the hub's cache or on the hub, its files checked unread."""

import contextlib
import functools
import re
import shlex
import socket
import sys
from collections.abc import Generator
from pathlib import Path, PurePath
from typing import cast
from urllib.parse import urlsplit

from huggingface_hub import constants, hf_hub_download, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, PreTrainedConfig

from coordexp.errors import CheckpointError, CoordExpError, show, summary
from coordexp.files import lfs_problem, parse_json
from coordexp.model.families import Family, family_of
from coordexp.runs.folder import RunFolder

EMBEDDED = "embedded"  # the small base that ships with the package
TINY_BASE = Path(__file__).parents[1] / "tiny" / "tiny_base"
CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

JsonObject = dict[str, object]

_SMALL_FILES = (CONFIG_FILE, "tokenizer_config.json", "preprocessor_config.json")
_TEXT_ENDINGS = (".json", ".jinja", ".txt", ".model")  # .model: a tokenizer of sentencepiece
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.\-]*/[\w.\-]+")
_HUB_SMALL_FILES = ["*.json", "*.jinja", "*.txt"]
HUB_FILES = [*_HUB_SMALL_FILES, "*.safetensors"]
_HUB_SECONDS = 3.0
_HUB_ERRORS = (HfHubHTTPError, HFValidationError, OSError)  # the offline and not-found errors are OSErrors too


def find_checkpoint(path_or_id: str | Path, *, revision: str | None = None, weights: bool = True) -> Path:
    """Return the directory of a checkpoint, all its files checked: ``embedded``, a directory, or a hub id (downloaded).

    Without ``weights`` only configuration, tokenizer and processor are fetched and checked. A ``revision`` that would
    have no effect is refused.
    """
    if is_hub_id(path_or_id):
        directory = _download(str(path_or_id), revision=revision, files=HUB_FILES if weights else _HUB_SMALL_FILES)
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
    """Look for a hub id in the local cache: its directory, if any, and the files that would still be downloaded."""
    try:
        directory = Path(snapshot_download(hub_id, revision=revision, local_files_only=True))
    except LocalEntryNotFoundError:
        return None, []
    except (HFValidationError, OSError, ValueError) as error:
        raise CheckpointError(f"{hub_id}: the hub's cache cannot be read ({error})") from None
    listed = weight_map(directory)
    wanted = [*_SMALL_FILES, *([WEIGHTS_FILE] if listed is None else sorted(set(listed.values())))]
    return directory, [name for name in wanted if not (directory / name).is_file()]


def local_checkpoint(path_or_id: str | Path, *, revision: str | None = None) -> Path | None:
    """Return the directory of a checkpoint whose small files are on this machine; None if it is to be downloaded."""
    if not is_hub_id(path_or_id):
        return find_checkpoint(path_or_id, revision=revision, weights=False)
    directory, missing = cached_checkpoint(str(path_or_id), revision=revision)
    return directory if all(name.endswith(".safetensors") for name in missing) else None


def hub_answers() -> bool:
    """Return whether the hub's host takes connections, within three seconds."""
    parts = urlsplit(constants.ENDPOINT)
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((parts.hostname or "", port), timeout=_HUB_SECONDS).close()
    except (OSError, ValueError):
        return False
    return True


def check_config(directory: Path) -> JsonObject:
    """Return ``config.json`` of a model that coordexp trains; refuse any other."""
    refuse_lfs_pointers(directory)
    file = directory / CONFIG_FILE
    merged = RunFolder(directory).merged
    if not file.exists() and (directory / "adapter_config.json").is_file():
        given = shlex.quote(str(directory))
        raise CheckpointError(
            f"{directory}: that is an adapter; expected a checkpoint, or --adapter {given} where a command has that; "
            f"coordexp merge --adapter {given} --output FOLDER makes a checkpoint of it (with --base where its base is "
            "elsewhere)"
        )
    if not file.exists() and (merged / CONFIG_FILE).is_file():
        raise CheckpointError(f"{directory}: that is the folder of a run; its checkpoint is {merged}")
    config = read_json(file)
    family_of(config.get("model_type"), where=file)
    if config.get("quantization_config") is not None:
        raise CheckpointError(
            f"{file}: quantization_config is {show(config['quantization_config'])}; expected weights that are plain "
            "numbers (bfloat16, float16, float32), such as those of the model that was quantized"
        )
    return config


def refuse_lfs_pointers(directory: Path) -> None:
    """Refuse a directory in which configuration, tokenizer or processor is a Git LFS pointer.

    Libraries open these files themselves, and each words its failure otherwise: "not valid JSON", "no such model type".
    Weights are looked at where they are opened.
    """
    for file in sorted(directory.glob("*")):
        if file.suffix in _TEXT_ENDINGS:
            _refuse_lfs_pointer(file)


def _refuse_lfs_pointer(file: Path) -> None:
    pointer = lfs_problem(file)
    if pointer:
        raise CheckpointError(pointer)


def model_family(directory: Path) -> Family:
    return family_of(check_config(directory).get("model_type"), where=directory / CONFIG_FILE)


def model_config(directory: Path) -> PreTrainedConfig:
    """Return the configuration of a checkpoint as transformers understands it."""
    check_config(directory)
    with library_errors(f"{directory / CONFIG_FILE}: makes no configuration"):
        return AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)


def weight_files(directory: Path) -> list[Path]:
    """Return the safetensors files of a checkpoint, none of them missing or cut short."""
    listed = weight_map(directory)
    if listed is None:
        files = [directory / WEIGHTS_FILE]
        if not files[0].is_file():
            _refuse_other_weights(directory)
    else:
        files = [directory / name for name in sorted(set(listed.values()))]
        if lost := [file.name for file in files if not file.is_file()]:
            raise CheckpointError(
                f"{directory / INDEX_FILE}: names {lost[0]}, which is not there ({len(lost)} of {len(files)} shards "
                "are missing); expected every shard beside the index; download it again"
            )
    for file in files:
        tensor_names(file)
    return files


def _refuse_other_weights(directory: Path) -> None:
    """Say what a folder without ``model.safetensors`` holds instead, and how it becomes safetensors."""
    pickled = next((name for name in _PICKLES if (directory / name).is_file()), None)
    shards = sorted(directory.glob("*.safetensors"))
    sharded_state = sorted(directory.glob("*/.metadata"))  # torch.distributed.checkpoint, as FSDP saves
    if pickled is not None:
        _refuse_lfs_pointer(directory / pickled)
        convert = (
            'python -c "from transformers import AutoModelForImageTextToText as M; '
            "M.from_pretrained('.', use_safetensors=False, dtype='auto').save_pretrained('.')\""
        )
        raise CheckpointError(
            f"{directory / pickled}: weights as a pickle, which can run code when it is read; expected safetensors "
            f"({WEIGHTS_FILE}, or shards and {INDEX_FILE}). Where you trust the file, convert it there: {convert}"
        )
    if shards:
        raise CheckpointError(
            f"{directory}: {shards[0].name} and {INDEX_FILE} belong together, and the index is not there; copy it "
            "from where the weights came from"
        )
    if (directory / "zero_to_fp32.py").is_file():
        raise CheckpointError(
            f"{directory}: DeepSpeed left the weights in parts, one for each rank; gather them there: "
            "python zero_to_fp32.py . . --safe_serialization"
        )
    if sharded_state:
        parts = shlex.quote(str(sharded_state[0].parent))
        raise CheckpointError(
            f"{directory}: FSDP left the weights in parts, in {sharded_state[0].parent.name}; gather them: "
            f"accelerate merge-weights {parts} {shlex.quote(str(directory))}"
        )


def weight_map(directory: Path) -> dict[str, str] | None:
    """Return the file name of each tensor as the index says; None where all weights are in one file."""
    file = directory / INDEX_FILE
    # Where both are there, transformers reads the single file.
    if (directory / WEIGHTS_FILE).is_file() or not file.is_file():
        return None
    listed = read_json(file).get("weight_map")
    if not isinstance(listed, dict) or not listed:
        raise CheckpointError(f"{file}: no weight_map; the index is damaged")
    files = {name: str(place) for name, place in cast("dict[str, object]", listed).items()}
    if away := sorted(place for place in files.values() if PurePath(place).name != place):
        raise CheckpointError(f"{file}: names the shard {away[0]!r}; expected a file beside the index")
    return files


def tensor_names(file: Path) -> list[str]:
    if not file.is_file():
        raise CheckpointError(f"{file}: weights not found; expected safetensors")
    _refuse_lfs_pointer(file)
    try:
        with safe_open(file, framework="pt") as handle:
            return list(handle.keys())
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file}: not a whole safetensors file ({error})") from None


@contextlib.contextmanager
def library_errors(sentence: str) -> Generator[None]:
    """Turn what a library raises while it reads a checkpoint into a CheckpointError: the sentence, and its first line.

    The tokenizers' parser raises a bare ``Exception``, and its panics are not even that.
    """
    try:
        yield
    except (CoordExpError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise CheckpointError(f"{sentence} ({summary(error)})") from error


def read_json(file: Path) -> JsonObject:
    """Read a JSON object; raises CheckpointError if the file is missing or holds something else."""
    _refuse_lfs_pointer(file)
    try:
        value = parse_json(file.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"{file}: not found; expected a checkpoint directory with {file.name}") from None
    except OSError as error:
        raise CheckpointError(f"{file}: the file cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise CheckpointError(f"{file}: not readable JSON ({error})") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{file}: holds a {type(value).__name__}, expected an object")
    return cast("JsonObject", value)


@functools.cache
def _say_asks(hub_id: str) -> None:
    # Where the hub does not answer, its client tries again for half a minute.
    sys.stderr.write(f"asks the hub for {hub_id}\n")


def _download(hub_id: str, *, revision: str | None, files: list[str]) -> Path:
    if not constants.HF_HUB_OFFLINE:
        _say_asks(hub_id)
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
