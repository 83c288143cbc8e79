"""Turns molecules written as SMILES into graphs and back; needs RDKit, the extra ``chem``."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedneighbors.datasets._graphs import Graph, GraphSet
from fedneighbors.errors import DataError, MissingDataError, MissingExtraError

_AROMATIC = "4"


def graph_from_smiles(smiles: str) -> Graph:
    """Return the graph of a molecule: heavy atoms by symbol, bonds by order.

    Parameters
    ----------
    smiles : str
        Aromatic rings get alternating single and double bonds; bonds of a ring that cannot be
        resolved so have label "4".

    Raises
    ------
    DataError
        If RDKit cannot read it.
    MissingExtraError
        If RDKit is not installed.
    """
    chem = _rdkit()
    molecule = chem.MolFromSmiles(smiles, sanitize=False)
    if molecule is None:
        raise DataError(f"expected SMILES, got {smiles[:60]!r}")
    try:
        chem.SanitizeMol(molecule)
        molecule = chem.RemoveHs(molecule)
        chem.Kekulize(molecule, clearAromaticFlags=True)
    except ValueError:  # of no accepted valence, or aromatic where it cannot be: keep what is there
        molecule = chem.MolFromSmiles(smiles, sanitize=False)
    return _graph(molecule)


def graph_to_smiles(graph: Graph) -> str:
    """Return SMILES of a graph whose labels are element symbols and bond orders 1, 2 or 3.

    Raises
    ------
    ValueError
        If a label is none of these.
    MissingExtraError
        If RDKit is not installed.
    """
    chem = _rdkit()
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


def read_smiles(path: str | os.PathLike[str]) -> GraphSet:
    """Read one molecule a line: SMILES, then after white space its name, the line's number if none.

    Raises
    ------
    MissingDataError
        If there is no such file.
    DataError
        If a line cannot be read or two names are equal; the line is named.
    MissingExtraError
        If RDKit is not installed.
    """
    file = Path(path)
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise MissingDataError(f"there is no file {file}; check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read ({error})") from error
    found: dict[str, Graph] = {}
    for number, line in enumerate(lines, start=1):
        words = line.split(maxsplit=1)
        if not words:
            continue
        name = words[1].strip() if len(words) == 2 else str(number)
        if name in found:
            raise DataError(f"{file}, line {number}: expected a new name, got {name!r} again")
        try:
            found[name] = graph_from_smiles(words[0])
        except DataError as error:
            raise DataError(f"{file}, line {number}: {error}") from None
    return GraphSet(list(found.values()), list(found))


def write_smiles(path: str | os.PathLike[str], graphs: GraphSet) -> None:
    """Write one molecule a line, SMILES and name; a file that is there is replaced.

    Raises
    ------
    ValueError
        If a graph is no molecule (see `graph_to_smiles`) or has no nodes; nothing is written.
    MissingExtraError
        If RDKit is not installed.
    """
    lines: Iterable[str] = [
        f"{_nonempty(graph_to_smiles(graph), name)}\t{name}\n"
        for graph, name in zip(graphs.graphs, graphs.names, strict=True)
    ]
    Path(path).write_text("".join(lines), encoding="utf-8")


def _nonempty(smiles: str, name: str) -> str:
    if not smiles:
        raise ValueError(f"graph {name!r} has no nodes, so no SMILES; leave it out")
    return smiles


def _graph(molecule: Any) -> Graph:
    bonds = [
        (
            (bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()),
            _AROMATIC if bond.GetIsAromatic() else str(int(bond.GetBondTypeAsDouble())),
        )
        for bond in molecule.GetBonds()
    ]
    return Graph(
        [atom.GetSymbol() for atom in molecule.GetAtoms()],
        [ends for ends, _ in bonds],
        [label for _, label in bonds],
    )


def _rdkit() -> Any:
    try:
        from rdkit import Chem
    except ImportError:
        raise MissingExtraError("rdkit", "chem") from None
    return Chem
