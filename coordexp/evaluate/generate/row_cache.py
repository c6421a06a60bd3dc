"""Keys and values of rows of different lengths: transformers' cache layer, with a next column for each row.

The cache of transformers appends one column to all rows. Here a row that takes a new image begins again at the first
column while its neighbours are far along. So each row has its own next column, and the columns behind it are masked::

    row 0  prompt prompt prompt answer answer [next]
    row 1  prompt prompt [next]  old    old    old      behind its next column: the former image, masked
    row 2  prompt prompt prompt prompt answer [next]
           <------------------- width ------------------>

Shapes: B rows, N of them, H heads of keys, Q of queries, D their size, L columns of keys and values.
"""

import contextlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import transformers
from packaging.version import Version
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from transformers import Cache, DynamicLayer, PreTrainedModel
from transformers.modeling_outputs import ModelOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

_STRIDE = 64  # columns by which tables grow; if they grew by one, each step would copy the whole cache
_ATTENTION = "coordexp_rows"
# The cache's name among a model's arguments and outputs. transformers 5.24 renamed it: since then the old name warns at
# every decoding step, and 5.40 drops it.
_CACHE_NAME = "cache" if Version(transformers.__version__) >= Version("5.24") else "past_key_values"


@dataclass
class NextColumns:
    """Where the next keys and values of each row go. The rows write it, and all layers read it.

    Attributes:
        row_B: ``[B]`` 0 to B - 1.
        column_B: ``[B]`` the next column of each row.
        width: number of columns in use; on the host, so that slicing by it does not wait for the device.
    """

    row_B: Tensor
    column_B: Tensor
    width: int = 0


class RowLayer(DynamicLayer):
    """Keys and values of one layer. A step writes one column in each row, and reads the columns in use."""

    def __init__(self, next_columns: NextColumns) -> None:
        """Begin without a table; the first prompt decides its shape and dtype."""
        super().__init__()
        self._next = next_columns

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Write keys and values ``[B, H, 1, D]``, and return ``[B, H, width, D]``; called by the model's attention."""
        columns = self._next
        keys, values = self.tables
        # Under autocast the rotary embedding makes keys float32, and the table has the dtype of the first prompt.
        keys[columns.row_B, :, columns.column_B] = key_states[:, :, 0].to(keys.dtype)
        values[columns.row_B, :, columns.column_B] = value_states[:, :, 0].to(values.dtype)
        return keys[:, :, : columns.width], values[:, :, : columns.width]

    @property
    def tables(self) -> tuple[Tensor, Tensor]:
        """Keys and values, ``[B, H, L, D]``."""
        assert self.keys is not None
        assert self.values is not None
        return self.keys, self.values

    def put(self, row_N: Tensor, prompt: DynamicLayer, *, num_rows: int) -> None:
        """Copy the keys and values of prompts into their rows, from the first column on.

        Args:
            row_N: ``[N]`` the rows.
            prompt: keys and values ``[N, H, L, D]``.
            num_rows: rows of the table, if this is the first prompt.
        """
        assert prompt.keys is not None
        assert prompt.values is not None
        if self.keys is None:
            self.keys = prompt.keys.new_zeros(num_rows, *prompt.keys.shape[1:])
            self.values = prompt.values.new_zeros(num_rows, *prompt.values.shape[1:])
            self.is_initialized = True

        num_columns = prompt.keys.shape[2]
        self.widen(num_columns)
        keys, values = self.tables
        keys[row_N, :, :num_columns] = prompt.keys
        values[row_N, :, :num_columns] = prompt.values

    def widen(self, num_columns: int) -> None:
        """Make room for this many columns. New ones are zero: attention multiplies masked values too, by 0."""
        keys, values = self.tables
        self.keys = widened(keys, dim=2, size=num_columns)
        self.values = widened(values, dim=2, size=num_columns)

    def keep(self, row_N: Tensor) -> None:
        """Drop all rows but these ``[N]``, which get this order."""
        keys, values = self.tables
        self.keys = keys[row_N]
        self.values = values[row_N]


@contextlib.contextmanager
def row_attention(language_model: PreTrainedModel) -> Generator[None]:
    """Have a model attend from the one new token of each row, in place of its own attention.

    There are two reasons. Each row needs a mask of its own, which not every implementation takes. And the attention of
    transformers 5.17 copies each key for every query head that reads it, which takes most of a step if eight heads
    share a key. Here the query heads that share a key become the queries of one head.
    """
    # transformers has a public way to set it, and none to ask for it.
    implementation = language_model.config._attn_implementation  # pyright: ignore[reportPrivateUsage]
    assert implementation is not None  # a model that was loaded has chosen one
    language_model.set_attn_implementation(_ATTENTION)
    try:
        yield
    finally:
        language_model.set_attn_implementation(implementation)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    *,
    scaling: float,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """Attend from one token of each row; the signature is that of transformers' attention functions.

    Args:
        module: the attention layer, which is not needed.
        query: ``[B, Q, 1, D]``.
        key: ``[B, H, L, D]``, where each of the H heads serves Q / H queries.
        value: ``[B, H, L, D]``.
        attention_mask: ``[B, 1, 1, L]`` bool, True for columns that the row sees.
        scaling: factor of the products of queries and keys.
        kwargs: settings of other implementations.

    Returns:
        ``[B, 1, Q, D]``, and no attention weights.
    """
    num_rows, num_queries, _, size = query.shape
    grouped = query.view(num_rows, key.shape[1], num_queries // key.shape[1], size)
    attended = F.scaled_dot_product_attention(grouped, key, value, attn_mask=attention_mask, scale=scaling)
    return attended.reshape(num_rows, 1, num_queries, size), None


ALL_ATTENTION_FUNCTIONS.register(_ATTENTION, _attend)


def widened(table: Tensor, *, dim: int, size: int) -> Tensor:
    """Return a table with room for ``size`` along ``dim``, padded with zeros; the table itself if it has room."""
    num_missing = size - table.shape[dim]
    if num_missing <= 0:
        return table
    num_missing += -size % _STRIDE  # up to the next multiple of the stride
    num_dims_after = table.ndim - 1 - dim
    return F.pad(table, [0, 0] * num_dims_after + [0, num_missing])  # F.pad names the last dimension first


def cache_argument(layers: Sequence[DynamicLayer]) -> dict[str, Cache]:
    """Return the argument that hands a model its cache, under the name that the installed transformers gives it."""
    return {_CACHE_NAME: Cache(layers=list(layers))}


def cache_of(outputs: ModelOutput) -> Cache:
    """Return the cache that a model filled, from the output that the installed transformers keeps it in."""
    cache = outputs[_CACHE_NAME]
    assert isinstance(cache, Cache)
    return cache
