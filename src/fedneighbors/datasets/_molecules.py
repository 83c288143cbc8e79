"""Molecules from SMILES and SDF (RDKit): graphs and fingerprints."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from fedneighbors._lazy import optional_module
from fedneighbors._typing import Booleans, Integers
from fedneighbors.datasets._files import read_lines
from fedneighbors.datasets._graphs import Graph, GraphSet
from fedneighbors.datasets._table import list_numbers
from fedneighbors.errors import DataError, MissingExtraError

_M = TypeVar("_M")
MOLECULES = frozenset({"graphs", "fingerprints"})
"""Kinds of objects that may be SMILES."""

MOLECULE_COLUMNS = ("smiles",)
"""Columns of molecules by default."""

MAX_PATTERN = 1000
"""Maximum number of characters of a substructure."""

_PATTERN_BITS, _SCREENED = 2048, 1 << 14  # bits of a fingerprint; molecules compared at a time
_HEADER = re.compile("[\"']?([a-z]+_)?smiles", re.IGNORECASE)
_AROMATIC = "4"  # bond type of aromatic bonds in MDL Molfiles


def graph_from_smiles(smiles: str) -> Graph:
    """Parse a molecule to a graph of heavy atoms and bonds.

    Nodes are labelled with the element symbol, edges with the bond order.

    Parameters
    ----------
    smiles : str
        SMILES. Aromatic rings get alternating single and double bonds (Kekule form). If RDKit
        rejects a valence or an aromatic ring, the molecule is used as written: all its aromatic
        bonds have label "4", and explicit hydrogen atoms stay.

    Raises
    ------
    DataError
        If RDKit cannot read it.
    MissingExtraError
        If RDKit is not installed.
    """
    return _make_graph(_parse_smiles(smiles))


def _parse_smiles(smiles: str) -> Any:
    """Return a molecule as written."""
    with _quiet():
        molecule = optional_module("rdkit.Chem", "chem").MolFromSmiles(smiles, sanitize=False)
    if molecule is None:
        raise DataError(f"expected SMILES, got {smiles[:60]!r}")
    return molecule


def _make_graph(written: Any) -> Graph:
    """Return the graph of a molecule as written."""
    chem = optional_module("rdkit.Chem", "chem")
    molecule = chem.Mol(written)
    try:
        chem.SanitizeMol(molecule)
        molecule = chem.RemoveHs(molecule)
        chem.Kekulize(molecule, clearAromaticFlags=True)
    except ValueError:  # invalid valence or aromatic ring: use the molecule as written
        molecule = written
    bonds = molecule.GetBonds()
    return Graph(
        [atom.GetSymbol() for atom in molecule.GetAtoms()],
        [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in bonds],
        [
            _AROMATIC if bond.GetIsAromatic() else str(int(bond.GetBondTypeAsDouble()))
            for bond in bonds
        ],
    )


FINGERPRINT_BITS, _FINGERPRINT_RADIUS = 2048, 2


@cache
def _make_fingerprints() -> Any:
    """Return RDKit's generator of Morgan fingerprints."""
    generators = optional_module("rdkit.Chem.rdFingerprintGenerator", "chem")
    return generators.GetMorganGenerator(radius=_FINGERPRINT_RADIUS, fpSize=FINGERPRINT_BITS)


def fingerprint_from_smiles(smiles: str) -> npt.NDArray[np.uint8]:
    """Return the Morgan fingerprint of a molecule: radius 2, 2,048 bits.

    Parameters
    ----------
    smiles : str
        SMILES.

    Returns
    -------
    uint8 array of shape (256,)
        Packed bits; bit ``j`` is bit ``j % 8`` of byte ``j // 8``.

    Raises
    ------
    DataError
        If RDKit cannot read it, or rejects a valence or an aromatic ring.
    MissingExtraError
        If RDKit is not installed.
    """
    molecule = _parse_smiles(smiles)
    if molecule.GetNumAtoms() == 0:
        raise DataError(f"expected SMILES, got {smiles[:60]!r}")
    return _make_fingerprint(molecule, f"SMILES {smiles[:60]!r}")


def _make_fingerprint(molecule: Any, text: str = "molecule") -> npt.NDArray[np.uint8]:
    """Return the fingerprint of a molecule as written."""
    bits = _make_fingerprints().GetFingerprintAsNumPy(_sanitize(molecule, text))
    return np.packbits(bits, bitorder="little")


def _sanitize(molecule: Any, text: str) -> Any:
    """Return a molecule as written with aromatic rings, without hydrogen atoms."""
    chem = optional_module("rdkit.Chem", "chem")
    try:
        with _quiet():
            chem.SanitizeMol(molecule)
            return chem.RemoveHs(molecule)
    except ValueError as error:
        raise DataError(f"RDKit rejects the {text}: {error}") from None


def _quiet() -> AbstractContextManager[Any]:
    """Keep RDKit from writing messages, which contain the molecule."""
    quiet: AbstractContextManager[Any] = optional_module("rdkit.rdBase", "chem").BlockLogs()
    return quiet


class Molecules:
    """A column of molecules, for filters by substructure.

    Parameters
    ----------
    smiles : sequence of str or None
        SMILES; None for a missing molecule.

    Raises
    ------
    DataError
        If RDKit cannot read a molecule; the error names its position.
    MissingExtraError
        If RDKit is not installed, and there is a molecule.
    """

    def __init__(self, smiles: Sequence[str | None]) -> None:
        n = len(smiles)
        self._smiles, self._binary = np.empty(n, object), np.empty(n, object)
        self._prints = np.zeros((n, _PATTERN_BITS // 8), np.uint8)
        self._smiles[:] = smiles
        for row, text in enumerate(smiles):
            if text is None:
                continue
            if not isinstance(text, str):
                raise DataError(f"molecule {row}: expected SMILES, got {text!r:.60}")
            try:
                molecule = _sanitize(_parse_smiles(text), f"SMILES {text[:60]!r}")
            except DataError as error:
                raise DataError(f"molecule {row}: {error}") from None
            self._binary[row] = molecule.ToBinary()
            self._prints[row] = _make_pattern(molecule)

    def __len__(self) -> int:
        return len(self._smiles)

    def __getitem__(self, rows: Integers) -> "Molecules":
        found = Molecules(())
        found._smiles, found._binary = self._smiles[rows], self._binary[rows]
        found._prints = self._prints[rows]
        return found

    def tolist(self) -> list[str | None]:
        """Return the SMILES."""
        smiles: list[str | None] = self._smiles.tolist()
        return smiles

    @property
    def is_missing(self) -> Booleans:
        """Return for each position whether the molecule is missing."""
        return np.array([text is None for text in self._smiles], bool)

    def find(self, pattern: str, check: Callable[[], None] = lambda: None) -> Booleans:
        """Return for each molecule whether it has a substructure.

        A missing one has none. Molecules without the bits of the pattern's fingerprint are not
        searched.

        Parameters
        ----------
        pattern : str
            SMARTS, of which most SMILES are a part.
        check : callable
            Called between molecules; may raise.

        Raises
        ------
        ValueError
            If RDKit cannot read the pattern, or it has more than ``MAX_PATTERN`` characters.
        """
        found = np.zeros(len(self), bool)
        query = _parse_pattern(pattern, is_needed=len(self) > 0)
        if query is None:
            return found
        molecule_of, bits = optional_module("rdkit.Chem", "chem").Mol, _make_pattern(query)
        for start in range(0, len(self), _SCREENED):
            check()
            part = self._prints[start : start + _SCREENED]
            for row in start + np.flatnonzero(((part & bits) == bits).all(axis=1)):
                check()
                binary = self._binary[row]
                found[row] = binary is not None and molecule_of(binary).HasSubstructMatch(query)
        return found


def _parse_pattern(pattern: str, *, is_needed: bool) -> Any:
    """Return a pattern; None if RDKit is neither installed nor needed."""
    try:
        chem = optional_module("rdkit.Chem", "chem")
    except MissingExtraError:
        if is_needed:
            raise
        return None
    if len(pattern) > MAX_PATTERN:
        raise ValueError(f"expected SMARTS of at most {MAX_PATTERN} characters as substructure")
    with _quiet():
        query = chem.MolFromSmarts(pattern)
    if query is None or not query.GetNumAtoms():
        raise ValueError(f"expected SMARTS as substructure, RDKit cannot read {pattern[:60]!r}")
    return query


def _make_pattern(molecule: Any) -> npt.NDArray[np.uint8]:
    """Return bits that each molecule with this substructure has."""
    chem = optional_module("rdkit.Chem", "chem")
    convert = optional_module("rdkit.DataStructs", "chem").BitVectToBinaryText
    return np.frombuffer(convert(chem.PatternFingerprint(molecule, fpSize=_PATTERN_BITS)), np.uint8)


def read_molecules(path: str | os.PathLike[str], *, skipped: list[int] | None = None) -> GraphSet:
    """Read the graphs of molecules from SMILES or SDF.

    Parameters
    ----------
    path : str or path
        SDF if the name ends in ``.sdf`` or ``.sdf.gz``; the first line of a record is the name of
        the molecule. Otherwise one molecule on each line: SMILES and, after white space, a name.
        Empty lines are skipped. The default name is the number of the line or record. The file is
        compressed if its name ends in ``.gz``, ``.xz`` or ``.bz2``.
    skipped : list of int, optional
        Takes the numbers of lines or records that cannot be read. By default, they are an error.

    Raises
    ------
    MissingDataError
        If there is no such file.
    DataError
        If a molecule cannot be read or two names are equal; the error names the lines or records.
    MissingExtraError
        If RDKit is not installed.
    """
    graphs = _read_molecules(path, graph_from_smiles, _make_graph, skipped)
    return GraphSet(list(graphs.values()), list(graphs))


def read_fingerprints(
    path: str | os.PathLike[str], *, skipped: list[int] | None = None
) -> dict[str, npt.NDArray[np.uint8]]:
    """Read the fingerprints of molecules from SMILES or SDF, by name.

    Files and errors are those of `read_molecules`, the fingerprints of `fingerprint_from_smiles`.
    """
    return _read_molecules(path, fingerprint_from_smiles, _make_fingerprint, skipped)


def read_smiles(path: str | os.PathLike[str], names: Sequence[str]) -> list[str]:
    """Read the SMILES of named molecules from SMILES or SDF.

    Files and errors are those of `read_molecules`; other molecules need not be readable.
    """
    to_smiles = optional_module("rdkit.Chem", "chem").MolToSmiles
    found = _read_molecules(
        path, str, lambda molecule: str(to_smiles(_sanitize(molecule, "record"))), []
    )
    return [found[name] for name in names]


def _read_molecules(
    path: str | os.PathLike[str],
    parse_smiles: Callable[[str], _M],
    convert: Callable[[Any], _M],
    skipped: list[int] | None,
) -> dict[str, _M]:
    """Read molecules by functions of SMILES and of molecules in SDF."""
    file, molecules = Path(path), dict[str, _M]()
    is_sdf = ".sdf" in file.suffixes
    unit, unreadable, first = "record" if is_sdf else "line", list[int](), ""
    for number, name, text in (_sdf_records if is_sdf else _smiles_lines)(file):
        if name in molecules:
            raise DataError(f"{file}, {unit} {number}: expected a new name, got {name!r} again")
        try:
            molecules[name] = convert(_parse_molblock(text)) if is_sdf else parse_smiles(text)
        except DataError as error:
            is_header = number == 1 and _HEADER.match(text) is not None
            first = first or f"{error}{'; it looks like a header: remove it' if is_header else ''}"
            unreadable.append(number)
    if unreadable and skipped is None:
        others = f"; nor can {unit}s {list_numbers(unreadable[1:])}" if unreadable[1:] else ""
        raise DataError(f"{file}, {unit} {unreadable[0]}: {first}{others}")
    (skipped if skipped is not None else []).extend(unreadable)
    return molecules


def _smiles_lines(file: Path) -> Iterator[tuple[int, str, str]]:
    """Yield line, name and SMILES of each molecule."""
    for number, line in enumerate(read_lines(file), start=1):
        words = line.split(maxsplit=1)
        if words:
            yield number, words[1].strip() if len(words) == 2 else str(number), words[0]


def _sdf_records(file: Path) -> Iterator[tuple[int, str, str]]:
    """Yield number, name and molblock of each molecule."""
    record: list[str] = []
    number = 1
    for line in read_lines(file):
        if line.rstrip() != "$$$$":
            record.append(line)
            continue
        name = record[0].strip() if record else ""
        yield number, name or str(number), "\n".join(record)
        record, number = [], number + 1
    if any(map(str.strip, record)):
        raise DataError(f"{file}, record {number}: expected $$$$ at the end; is it truncated?")


def _parse_molblock(text: str) -> Any:
    """Return the molecule of an SDF record as written."""
    chem = optional_module("rdkit.Chem", "chem")
    molecule = chem.MolFromMolBlock(text, sanitize=False, removeHs=False)
    if molecule is None or molecule.GetNumAtoms() == 0:
        raise DataError("expected the atoms of a molecule; is the record damaged?")
    return molecule
