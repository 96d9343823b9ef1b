"""Topic filters with a value each, matched by topic (section 4.7)."""

from __future__ import annotations

from collections.abc import Iterator


class _Level:
    """A level of the filters with wildcards."""

    __slots__ = ("children", "rest", "value")

    def __init__(self) -> None:
        self.children: dict[str, _Level] | None = None
        self.value: object = None
        """The value of the filter that ends at this level."""
        self.rest: object = None
        """The value of the filter that ends with ``#`` below this level."""

    @property
    def is_empty(self) -> bool:
        """Whether no filter goes through this level."""
        return not self.children and self.value is None and self.rest is None


class FilterTable:
    """Values by topic filter. Filters without wildcards are in a dict, the others in a trie by level.

    A value must not be ``None``, which stands for no value.
    """

    __slots__ = ("_exact", "_patterns", "_root")

    def __init__(self) -> None:
        self._exact: dict[str, object] = {}
        self._root = _Level()
        self._patterns = 0
        """The number of filters in the trie."""

    def __len__(self) -> int:
        """Return the number of filters."""
        return len(self._exact) + self._patterns

    def get(self, filter: str) -> object:
        """Return the value of a filter; ``None`` if it has none."""
        if "+" not in filter and "#" not in filter:
            return self._exact.get(filter)
        level: _Level | None = self._root
        levels = filter.split("/")
        for name in levels[:-1] if levels[-1] == "#" else levels:
            if level is None or level.children is None:
                return None
            level = level.children.get(name)
        if level is None:
            return None
        return level.rest if levels[-1] == "#" else level.value

    def put(self, filter: str, value: object) -> None:
        """Set the value of a filter; ``None`` removes it."""
        if "+" not in filter and "#" not in filter:
            if value is None:
                self._exact.pop(filter, None)
            else:
                self._exact[filter] = value
        elif value is None:
            self._remove(filter.split("/"))
        else:
            self._add(filter.split("/"), value)

    def _add(self, levels: list[str], value: object) -> None:
        level = self._root
        is_rest = levels[-1] == "#"
        for name in levels[:-1] if is_rest else levels:
            children = level.children
            if children is None:
                children = level.children = {}
            child = children.get(name)
            if child is None:
                child = children[name] = _Level()
            level = child
        if (level.rest if is_rest else level.value) is None:
            self._patterns += 1
        if is_rest:
            level.rest = value
        else:
            level.value = value

    def _remove(self, levels: list[str]) -> None:
        way: list[tuple[_Level, str]] = []
        level = self._root
        is_rest = levels[-1] == "#"
        for name in levels[:-1] if is_rest else levels:
            child = None if level.children is None else level.children.get(name)
            if child is None:
                return
            way.append((level, name))
            level = child
        if (level.rest if is_rest else level.value) is None:
            return
        self._patterns -= 1
        if is_rest:
            level.rest = None
        else:
            level.value = None
        while way and level.is_empty:
            level, name = way.pop()
            children = level.children
            assert children is not None
            del children[name]

    def match(self, topic: str) -> list[object]:
        """Return the values of all filters that match a topic name."""
        exact = self._exact.get(topic)
        found: list[object] = [] if exact is None else [exact]
        if not self._patterns:
            return found
        levels = topic.split("/")
        # MQTT-4.7.2-1: a wildcard in the first level does not match a topic that begins with "$".
        hides = topic[:1] == "$"
        root = self._root
        if root.rest is not None and not hides:
            found.append(root.rest)
        at = [root]
        for number, name in enumerate(levels):
            below: list[_Level] = []
            for level in at:
                children = level.children
                if children is None:
                    continue
                child = children.get(name)
                if child is not None:
                    below.append(child)
                if not (hides and number == 0):
                    child = children.get("+")
                    if child is not None:
                        below.append(child)
            if not below:
                return found
            # "a/#" also matches "a" itself (section 4.7.1.2).
            found += [level.rest for level in below if level.rest is not None]
            at = below
        found += [level.value for level in at if level.value is not None]
        return found

    def filters(self) -> Iterator[str]:
        """Iterate over all filters; the table must not change meanwhile."""
        yield from self._exact
        pending: list[tuple[_Level, str]] = [(self._root, "")]
        while pending:
            level, prefix = pending.pop()
            if level.value is not None:
                yield prefix[:-1]
            if level.rest is not None:
                yield f"{prefix}#"
            for name, child in (level.children or {}).items():
                pending.append((child, f"{prefix}{name}/"))
