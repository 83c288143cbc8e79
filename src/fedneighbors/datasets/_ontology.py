"""Ontologies in the OBO format: terms and their ancestors."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from fedneighbors.datasets._files import read_lines
from fedneighbors.errors import DataError


@dataclass(frozen=True)
class Ontology:
    """Terms of an ontology, such as the Human Phenotype Ontology.

    Parameters
    ----------
    digest : str
        Hash of the terms.
    parents : mapping of str to tuple of str
        Parents of each term (``is_a``).
    names : mapping of str to str
        Term of each earlier identifier (``alt_id``, ``replaced_by``).
    """

    digest: str
    parents: Mapping[str, tuple[str, ...]] = field(compare=False, repr=False)
    names: Mapping[str, str] = field(compare=False, repr=False)

    @cached_property
    def _closed(self) -> dict[str, frozenset[str]]:
        """Hold the known terms with their ancestors."""
        return {}

    @classmethod
    def read(cls, path: Path) -> "Ontology":
        """Read a file in the OBO format.

        Only ``is_a``, ``alt_id`` and ``replaced_by`` of terms are read.

        Raises
        ------
        MissingDataError
            If there is no such file.
        DataError
            If it has no terms.
        """
        parents: dict[str, tuple[str, ...]] = {}
        names: dict[str, str] = {}
        is_term, term = False, ""
        for line in read_lines(path):
            tag, _, value = line.partition(":")
            value = value.partition("!")[0].partition("{")[0].strip()
            if line.startswith("["):
                is_term, term = line.strip() == "[Term]", ""
            elif is_term and tag == "id":
                term = value
                parents.setdefault(term, ())
            elif term and tag == "is_a":
                parents[term] = (*parents[term], value)
            elif term and tag == "alt_id":
                names[value] = term
            elif term and tag == "replaced_by":
                names[term] = value
        if not parents:
            raise DataError(f"{path} has no terms; expected an ontology in the OBO format")
        content = repr((sorted(parents.items()), sorted(names.items())))
        return cls(hashlib.sha256(content.encode()).hexdigest(), parents, names)

    def close(self, codes: Iterable[str]) -> frozenset[str]:
        """Return codes and their ancestors; an unknown code has none."""
        return frozenset().union(*map(self._close_one, codes))

    def _close_one(self, code: str) -> frozenset[str]:
        if code not in self._closed:
            found: set[str] = set()
            left = [self.names.get(code, code)]
            while left:
                term = left.pop()
                if term not in found:  # a file may have a cycle
                    found.add(term)
                    left += self.parents.get(term, ())
            if code not in self.parents and code not in self.names:
                return frozenset(found)  # not stored: queries may have any number of them
            self._closed[code] = frozenset(found)
        return self._closed[code]
