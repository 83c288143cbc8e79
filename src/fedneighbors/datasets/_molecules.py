"""Molecules from SMILES and SDF (RDKit): graphs and fingerprints."""

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from fedneighbors._lazy import optional_module
from fedneighbors.datasets._files import explain_errors, read_lines
from fedneighbors.datasets._graphs import Graph, GraphSet
from fedneighbors.errors import DataError

_M = TypeVar("_M")
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
    chem = optional_module("rdkit.Chem", "chem")
    try:
        chem.SanitizeMol(molecule)
    except ValueError as error:
        raise DataError(f"RDKit rejects the {text}: {error}") from None
    bits = _make_fingerprints().GetFingerprintAsNumPy(chem.RemoveHs(molecule))
    return np.packbits(bits, bitorder="little")


def graph_to_smiles(graph: Graph) -> str:
    """Return the SMILES of a graph.

    Node labels must be element symbols, and edge labels "1", "2" or "3".

    Raises
    ------
    ValueError
        If a label is invalid.
    MissingExtraError
        If RDKit is not installed.
    """
    chem = optional_module("rdkit.Chem", "chem")
    orders = {"1": chem.BondType.SINGLE, "2": chem.BondType.DOUBLE, "3": chem.BondType.TRIPLE}
    molecule = chem.RWMol()
    for label in graph.node_labels:
        try:
            atom = chem.Atom(label)
        except RuntimeError:
            raise ValueError(f"expected the symbol of an element, got {label!r}") from None
        atom.SetNoImplicit(True)
        molecule.AddAtom(atom)
    for (u, v), label in zip(graph.edges, graph.edge_labels, strict=True):
        if label not in orders:
            raise ValueError(f"expected a bond of order 1, 2 or 3, got {label!r}")
        molecule.AddBond(u, v, orders[label])
    return str(chem.MolToSmiles(molecule.GetMol()))


def read_molecules(path: str | os.PathLike[str]) -> GraphSet:
    """Read the graphs of molecules from SMILES or SDF.

    Parameters
    ----------
    path : str or path
        SDF if the name ends in ``.sdf`` or ``.sdf.gz``; the first line of a record is the name of
        the molecule. Otherwise one molecule on each line: SMILES and, after white space, a name.
        Empty lines are skipped. The default name is the number of the line or record.

    Raises
    ------
    MissingDataError
        If there is no such file.
    DataError
        If a molecule cannot be read or two names are equal; the error names the line or record.
    MissingExtraError
        If RDKit is not installed.
    """
    graphs = _read_molecules(path, graph_from_smiles, _make_graph)
    return GraphSet(list(graphs.values()), list(graphs))


def read_fingerprints(path: str | os.PathLike[str]) -> dict[str, npt.NDArray[np.uint8]]:
    """Read the fingerprints of molecules from SMILES or SDF, by name.

    Files and errors are those of `read_molecules`, the fingerprints of `fingerprint_from_smiles`.
    """
    return _read_molecules(path, fingerprint_from_smiles, _make_fingerprint)


def _read_molecules(
    path: str | os.PathLike[str], parse_smiles: Callable[[str], _M], convert: Callable[[Any], _M]
) -> dict[str, _M]:
    """Read molecules by functions of SMILES and of molecules in SDF."""
    file = Path(path)
    is_sdf, molecules = ".sdf" in file.suffixes, dict[str, _M]()
    for place, name, text in (_sdf_records if is_sdf else _smiles_lines)(file):
        if name in molecules:
            raise DataError(f"{place}: expected a new name, got {name!r} again")
        try:
            molecules[name] = convert(_parse_molblock(text)) if is_sdf else parse_smiles(text)
        except DataError as error:
            raise DataError(f"{place}: {error}") from None
    return molecules


def _smiles_lines(file: Path) -> Iterator[tuple[str, str, str]]:
    """Yield place, name and SMILES of each molecule."""
    with explain_errors(file):
        lines = file.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        words = line.split(maxsplit=1)
        if words:
            name = words[1].strip() if len(words) == 2 else str(number)
            yield f"{file}, line {number}", name, words[0]


def _sdf_records(file: Path) -> Iterator[tuple[str, str, str]]:
    """Yield place, name and molblock of each molecule."""
    record: list[str] = []
    number = 1
    for line in read_lines(file):
        if line.rstrip() != "$$$$":
            record.append(line)
            continue
        name = record[0].strip() if record else ""
        yield f"{file}, record {number}", name or str(number), "\n".join(record)
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


def write_smiles(path: str | os.PathLike[str], graphs: GraphSet) -> None:
    """Write SMILES and name of one molecule per line.

    An existing file is replaced.

    Raises
    ------
    ValueError
        If a graph is not a molecule (see `graph_to_smiles`) or has no nodes; nothing is written.
    MissingExtraError
        If RDKit is not installed.
    """
    lines = []
    for graph, name in zip(graphs.graphs, graphs.names, strict=True):
        if not graph.n_nodes:
            raise ValueError(f"graph {name!r} has no nodes, so no SMILES; remove it")
        lines.append(f"{graph_to_smiles(graph)}\t{name}\n")
    Path(path).write_text("".join(lines), encoding="utf-8")
