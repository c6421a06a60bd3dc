"""A checkpoint directory: find it in the package, on disk, in the hub's cache or on the hub, and check its files.

Only small files and the headers of weights are read.
"""

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
_HUB_ERRORS = (HfHubHTTPError, HFValidationError, OSError)  # the hub's offline and not-found errors are OSErrors


def find_checkpoint(path_or_id: str | Path, *, revision: str | None = None, weights: bool = True) -> Path:
    """Return the directory of a checkpoint, with its files checked.

    Args:
        path_or_id: ``embedded``, a directory, or a hub id, which is downloaded.
        revision: of the hub id.
        weights: whether weights are needed. If not, only configuration, tokenizer and processor are fetched and
            checked.

    Raises:
        CheckpointError: if there is no such checkpoint, a file is missing or damaged, it holds a model that coordexp
            does not train, or ``revision`` is given for a local directory, where it would have no effect.
    """
    if is_hub_id(path_or_id):
        files = HUB_FILES if weights else _HUB_SMALL_FILES
        directory = _download(str(path_or_id), revision=revision, files=files)
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
    """Return whether this names a checkpoint on the hub. If a local path has the same name, the path is meant."""
    return _HUB_ID.fullmatch(str(path_or_id)) is not None and not Path(path_or_id).expanduser().exists()


def cached_checkpoint(hub_id: str, *, revision: str | None = None) -> tuple[Path | None, list[str]]:
    """Look for a hub id in the local cache.

    Returns:
        Its directory, or None if nothing of it is there; and the names of files that would still be downloaded.

    Raises:
        CheckpointError: if the cache cannot be read.
    """
    try:
        directory = Path(snapshot_download(hub_id, revision=revision, local_files_only=True))
    except LocalEntryNotFoundError:
        return None, []
    except (HFValidationError, OSError, ValueError) as error:
        raise CheckpointError(f"{hub_id}: the hub's cache cannot be read ({error})") from None
    file_by_tensor = weight_map(directory)
    weight_names = [WEIGHTS_FILE] if file_by_tensor is None else sorted(set(file_by_tensor.values()))
    needed_names = [*_SMALL_FILES, *weight_names]
    return directory, [name for name in needed_names if not (directory / name).is_file()]


def local_checkpoint(path_or_id: str | Path, *, revision: str | None = None) -> Path | None:
    """Return the directory of a checkpoint whose small files are on this machine; None if they must be downloaded."""
    if not is_hub_id(path_or_id):
        return find_checkpoint(path_or_id, revision=revision, weights=False)
    directory, missing = cached_checkpoint(str(path_or_id), revision=revision)
    lacks_only_weights = all(name.endswith(".safetensors") for name in missing)
    return directory if lacks_only_weights else None


def hub_answers() -> bool:
    """Return whether the hub's host takes connections, within three seconds."""
    address = urlsplit(constants.ENDPOINT)
    try:
        port = address.port or (443 if address.scheme == "https" else 80)
        socket.create_connection((address.hostname or "", port), timeout=_HUB_SECONDS).close()
    except (OSError, ValueError):
        return False
    return True


def check_config(directory: Path) -> JsonObject:
    """Return the ``config.json`` of a model that coordexp trains.

    Raises:
        CheckpointError: if it is missing, of another family, or of quantised weights; if the folder is an adapter or a
            run, the message says which folder or option to use instead.
    """
    refuse_lfs_pointers(directory)
    file = directory / CONFIG_FILE
    merged = RunFolder(directory).merged
    if not file.exists() and (directory / "adapter_config.json").is_file():
        adapter = shlex.quote(str(directory))
        raise CheckpointError(
            f"{directory}: that is an adapter; expected a checkpoint, or --adapter {adapter} where a command has that; "
            f"coordexp merge --adapter {adapter} --output FOLDER makes a checkpoint of it (with --base if its base is "
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
    """Raise a CheckpointError if configuration, tokenizer or processor is a Git LFS pointer.

    Libraries open these files themselves and would report something else: "not valid JSON", "no such model type".
    Weights are checked where they are opened.
    """
    for file in sorted(directory.glob("*")):
        if file.suffix in _TEXT_ENDINGS:
            _refuse_lfs_pointer(file)


def _refuse_lfs_pointer(file: Path) -> None:
    pointer = lfs_problem(file)
    if pointer:
        raise CheckpointError(pointer)


def model_family(directory: Path) -> Family:
    """Return the family of a checkpoint's model."""
    return family_of(check_config(directory).get("model_type"), where=directory / CONFIG_FILE)


def model_config(directory: Path) -> PreTrainedConfig:
    """Return the configuration of a checkpoint as transformers reads it."""
    check_config(directory)
    with library_errors(f"{directory / CONFIG_FILE}: makes no configuration"):
        return AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)


def weight_files(directory: Path) -> list[Path]:
    """Return the safetensors files of a checkpoint.

    Raises:
        CheckpointError: if a file is missing or cut short.
    """
    file_by_tensor = weight_map(directory)
    if file_by_tensor is None:
        files = [directory / WEIGHTS_FILE]
        if not files[0].is_file():
            _refuse_other_weights(directory)
    else:
        files = [directory / name for name in sorted(set(file_by_tensor.values()))]
        missing = [file.name for file in files if not file.is_file()]
        if missing:
            raise CheckpointError(
                f"{directory / INDEX_FILE}: names {missing[0]}, which is not there ({len(missing)} of {len(files)} "
                "shards are missing); expected every shard beside the index; download it again"
            )
    for file in files:
        tensor_names(file)
    return files


def _refuse_other_weights(directory: Path) -> None:
    """Raise a CheckpointError that says what a folder holds instead of safetensors, and how to convert it.

    Returns if nothing is recognised; the caller then reports the missing file.
    """
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
            f"({WEIGHTS_FILE}, or shards and {INDEX_FILE}). If you trust the file, convert it there: {convert}"
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
        shard_folder = sharded_state[0].parent
        raise CheckpointError(
            f"{directory}: FSDP left the weights in parts, in {shard_folder.name}; gather them: "
            f"accelerate merge-weights {shlex.quote(str(shard_folder))} {shlex.quote(str(directory))}"
        )


def weight_map(directory: Path) -> dict[str, str] | None:
    """Return the file name of each tensor as the index says; None if all weights are in one file.

    Raises:
        CheckpointError: if the index is damaged, or names a file outside of the directory.
    """
    file = directory / INDEX_FILE
    # If both exist, transformers reads the single file and ignores the index.
    if (directory / WEIGHTS_FILE).is_file() or not file.is_file():
        return None
    entries = read_json(file).get("weight_map")
    if not isinstance(entries, dict) or not entries:
        raise CheckpointError(f"{file}: no weight_map; the index is damaged")
    file_by_tensor = {tensor: str(name) for tensor, name in cast("dict[str, object]", entries).items()}
    elsewhere = sorted(name for name in file_by_tensor.values() if PurePath(name).name != name)
    if elsewhere:
        raise CheckpointError(f"{file}: names the shard {elsewhere[0]!r}; expected a file beside the index")
    return file_by_tensor


def tensor_names(file: Path) -> list[str]:
    """Return the names of the tensors in a safetensors file.

    Raises:
        CheckpointError: if the file is missing, cut short, or a Git LFS pointer.
    """
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
    """Turn what a library raises while it reads a checkpoint into a CheckpointError.

    The message is ``sentence`` and the first line of the library's own. ``BaseException`` is caught because a panic in
    the tokenizers' parser, which is written in Rust, is not an ``Exception``.
    """
    try:
        yield
    except (CoordExpError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise CheckpointError(f"{sentence} ({summary(error)})") from error


def read_json(file: Path) -> JsonObject:
    """Read a JSON object.

    Raises:
        CheckpointError: if the file is missing, cannot be read, or holds anything else.
    """
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


@functools.cache  # once for each id
def _report_asking(hub_id: str) -> None:
    # If the hub does not answer, its client retries for half a minute, in which a person would see nothing.
    sys.stderr.write(f"asks the hub for {hub_id}\n")


def _download(hub_id: str, *, revision: str | None, files: list[str]) -> Path:
    if not constants.HF_HUB_OFFLINE:
        _report_asking(hub_id)
    try:
        # The configuration comes first: the weights of a model that will be refused are not downloaded.
        config = hf_hub_download(hub_id, "config.json", revision=revision)
        check_config(Path(config).parent)
        return Path(snapshot_download(hub_id, revision=revision, allow_patterns=files))
    except _HUB_ERRORS as error:
        name = hub_id if revision is None else f"{hub_id} at revision {revision}"
        lines = str(error).strip().splitlines()
        reason = lines[0] if lines else type(error).__name__
        if isinstance(error, LocalEntryNotFoundError):  # the hub's own message has three sentences
            why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "the hub cannot be reached"
            reason = f"it is not in the cache {constants.HF_HUB_CACHE}, and {why}"
        raise CheckpointError(f"{name}: no such directory, and the hub does not give it ({reason})") from None
