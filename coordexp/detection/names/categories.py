"""Description -> category id: exact match after folding case and spacing, plus a table of aliases."""

from collections.abc import Mapping

from coordexp.data.sample import fold
from coordexp.errors import DataError


class CategoryIndex:
    """Finds the category a description names.

    ``aliases``: further descriptions -> the category name each stands for.

    Raises:
        DataError: if two names fold to one, a name is blank, or an alias is ambiguous or stands for no category.
    """

    def __init__(self, names: Mapping[int, str], *, aliases: Mapping[str, str] | None = None) -> None:
        self._ids: dict[str, int] = {}
        for category_id, name in names.items():
            self._add(name, category_id, what=f"category {category_id}")
        ids_without_aliases = dict(self._ids)  # An alias stands for a category, not for another alias.
        for alias, name in (aliases or {}).items():
            category_id = ids_without_aliases.get(fold(name))
            if category_id is None:
                raise DataError(f"alias {alias!r} stands for {name!r}, which is not a category of the annotations")
            self._add(alias, category_id, what="alias")

    def find(self, desc: str) -> int | None:
        """Return the id of the category ``desc`` names, or None."""
        return self._ids.get(fold(desc))

    def _add(self, name: str, category_id: int, *, what: str) -> None:
        """Add a name; ``what`` has it, for messages."""
        key = fold(name)
        if not key:
            raise DataError(f"{what} has the blank name {name!r}; expected some text")
        id_with_this_name = self._ids.setdefault(key, category_id)
        if id_with_this_name != category_id:
            raise DataError(
                f"{what} {name!r} reads like category {id_with_this_name} once case and spacing are folded; expected "
                "one id for each name"
            )
