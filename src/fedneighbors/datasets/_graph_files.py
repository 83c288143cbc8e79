"""Files of graphs: text in lines ``t``, ``v`` and ``e``, and SMILES of molecules."""

import os
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from fedneighbors.datasets._files import explain_errors, open_text
from fedneighbors.datasets._graphs import Graph, GraphSet
from fedneighbors.errors import DataError, MissingExtraError


def read_graphs(path: str | os.PathLike[str], *, max_graphs: int | None = None) -> GraphSet:
    """Read graphs from a file.

    Parameters
    ----------
    path : str or path
        UTF-8 text, gzipped if the name ends in ``.gz``. A graph begins with ``t # name`` or
        ``t # name class``; ``v 0 C`` is a node, numbered from 0 in order; ``e 0 1 2`` an edge
        between nodes that were named before, with its label. Empty lines are skipped, and
        ``t # -1`` ends the file.
    max_graphs : int, optional
        Stop after so many.

    Returns
    -------
    GraphSet

    Raises
    ------
    MissingDataError
        If there is no such file.
    DataError
        If the file is damaged or not UTF-8, or a line is malformed; the line is named.
    """
    file = Path(path)
    with explain_errors(file), open_text(file) as lines:
        rows = list(islice(_parse(lines, file), max_graphs))
    names = [name for name, _, _ in rows]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(f"{file} names two graphs {twice[0]!r}; give each its own name")
    return GraphSet([graph for _, _, graph in rows], names, [kind for _, kind, _ in rows])


def write_graphs(path: str | os.PathLike[str], graphs: GraphSet) -> None:
    """Write graphs so that `read_graphs` reads them back equal.

    Parameters
    ----------
    path : str or path
        Gzipped if the name ends in ``.gz``. A file that is there is replaced.
    graphs : GraphSet
        No name, class or label may hold white space; names and labels may not be empty, nor may
        a name be "-1".

    Raises
    ------
    ValueError
        If a word cannot stand in this format; nothing is written.
    """
    lines: list[str] = []
    for graph, name, kind in zip(graphs.graphs, graphs.names, graphs.classes, strict=True):
        if name == "-1":
            raise ValueError('a graph is named "-1", which ends a file of this format; rename it')
        lines.append(f"t # {_word(name)}" + (f" {_word(kind)}" if kind else ""))
        lines += [f"v {i} {_word(label)}" for i, label in enumerate(graph.node_labels)]
        bonds = zip(graph.edges, graph.edge_labels, strict=True)
        lines += [f"e {u} {v} {_word(label)}" for (u, v), label in bonds]
    with open_text(Path(path), "wt") as file:
        file.writelines(line + "\n" for line in lines)


_FORMS = {
    "t": "'t # name' or 't # name class'",
    "v": "'v node label'",
    "e": "'e node node label'",
}


def _parse(lines: Iterable[str], file: Path) -> Iterator[tuple[str, str, Graph]]:
    """Yield name, class and graph of each block of lines."""
    head: tuple[str, str] | None = None
    labels: list[str] = []
    edges: dict[tuple[int, int], str] = {}
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if words[:1] == ["t"] and head is not None:
            yield *head, Graph(labels, edges, [*edges.values()])
            head = None
        try:
            match words:
                case []:
                    continue
                case ["t", "#", "-1", *kind] if len(kind) <= 1:
                    return
                case ["t", "#", name, *kind] if len(kind) <= 1:
                    head, labels, edges = (name, "".join(kind)), [], {}
                case ["v", _, _] | ["e", _, _, _] if head is None:
                    raise ValueError("a line 't # name' before the first node or edge")
                case ["v", node, label]:
                    if _number(node) != len(labels):
                        raise ValueError(f"node {len(labels)} next, got {node}")
                    labels.append(label)
                case ["e", first, second, label]:
                    edges[_ends(first, second, len(labels), edges)] = label
                case [kind, *_]:
                    other = f"a line that begins with t, v or e, got {kind!r}"
                    raise ValueError(_FORMS.get(kind, other))
        except ValueError as error:
            raise DataError(f"{file}, line {number}: expected {error}") from None
    if head is not None:
        yield *head, Graph(labels, edges, [*edges.values()])


def _ends(
    first: str, second: str, n_nodes: int, known: Container[tuple[int, int]]
) -> tuple[int, int]:
    """Return the nodes of a new edge, the lower one first."""
    u, v = sorted((_number(first), _number(second)))
    if v >= n_nodes:
        raise ValueError(f"nodes 0 to {n_nodes - 1}, got {v}")
    if u == v:
        raise ValueError(f"an edge between two nodes, got a loop at {u}")
    if (u, v) in known:
        raise ValueError(f"each edge once, got {u} {v} again")
    return u, v


def _number(word: str) -> int:
    if not (word.isascii() and word.isdecimal() and len(word) < 10):
        raise ValueError(f"a node number, got {word[:20]!r}")
    return int(word)


def _word(word: str) -> str:
    if not word or len(word.split()) != 1 or word.split()[0] != word:
        raise ValueError(f"expected a word without white space, got {word!r}; rename it")
    return word


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
    bonds = molecule.GetBonds()
    return Graph(
        [atom.GetSymbol() for atom in molecule.GetAtoms()],
        [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in bonds],
        [
            _AROMATIC if bond.GetIsAromatic() else str(int(bond.GetBondTypeAsDouble()))
            for bond in bonds
        ],
    )


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
    with explain_errors(file):
        lines = file.read_text(encoding="utf-8").splitlines()
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
    lines = []
    for graph, name in zip(graphs.graphs, graphs.names, strict=True):
        if not graph.n_nodes:
            raise ValueError(f"graph {name!r} has no nodes, so no SMILES; leave it out")
        lines.append(f"{graph_to_smiles(graph)}\t{name}\n")
    Path(path).write_text("".join(lines), encoding="utf-8")


def _rdkit() -> Any:
    try:
        from rdkit import Chem
    except ImportError:
        raise MissingExtraError("rdkit", "chem") from None
    return Chem
