"""Files of graphs: text in lines ``t``, ``v`` and ``e``, and SMILES of molecules."""

import gzip
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO, cast

from fedneighbors.datasets._graphs import Graph, GraphSet
from fedneighbors.errors import DataError, MissingDataError, MissingExtraError


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
    try:
        with _opened(file, "rt") as lines:
            return _graph_set(_Reader(file, max_graphs).read(lines), file)
    except FileNotFoundError:
        raise MissingDataError(f"there is no file {file}; check the path") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not UTF-8 text ({error.reason}); convert it") from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file} cannot be read ({error}); is it damaged?") from error


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
    with _opened(Path(path), "wt") as file:
        file.writelines(line + "\n" for line in lines)


class _Reader:
    """Turns lines into (name, class, graph); keeps the place for messages."""

    def __init__(self, file: Path, max_graphs: int | None) -> None:
        self._file = file
        self._left = max_graphs
        self._line = 0
        self._open = False
        self._clear("", "")

    def _clear(self, name: str, kind: str) -> None:
        self._name, self._kind = name, kind
        self._labels: list[str] = []
        self._edges: dict[tuple[int, int], str] = {}

    def read(self, lines: Iterator[str] | TextIO) -> Iterator[tuple[str, str, Graph]]:
        for self._line, line in enumerate(lines, start=1):
            words = line.split()
            if not words:
                continue
            kind = words[0]
            if kind == "v":
                self._node(words)
            elif kind == "e":
                self._edge(words)
            elif kind == "t":
                yield from self._finished()
                if self._left == 0 or self._header(words):
                    return
            else:
                raise self._wrong(f"a line that begins with t, v or e, got {kind!r}")
        yield from self._finished()

    def _finished(self) -> Iterator[tuple[str, str, Graph]]:
        if self._open:
            if self._left is not None:
                self._left -= 1
            yield self._name, self._kind, Graph(self._labels, self._edges, [*self._edges.values()])
        self._open = False

    def _header(self, words: list[str]) -> bool:
        """Begin a graph; return whether the line ends the file instead."""
        if not 3 <= len(words) <= 4 or words[1] != "#":
            raise self._wrong("'t # name' or 't # name class'")
        self._clear(words[2], words[3] if len(words) == 4 else "")
        self._open = words[2] != "-1"
        return not self._open

    def _node(self, words: list[str]) -> None:
        self._inside(words, "'v node label'", 3)
        if self._number(words[1]) != len(self._labels):
            raise self._wrong(f"node {len(self._labels)} next, got {words[1]}")
        self._labels.append(words[2])

    def _edge(self, words: list[str]) -> None:
        self._inside(words, "'e node node label'", 4)
        u, v = sorted((self._number(words[1]), self._number(words[2])))
        if v >= len(self._labels):
            raise self._wrong(f"nodes 0 to {len(self._labels) - 1}, got {v}")
        if u == v:
            raise self._wrong(f"an edge between two nodes, got a loop at {u}")
        if (u, v) in self._edges:
            raise self._wrong(f"each edge once, got {u} {v} again")
        self._edges[u, v] = words[3]

    def _inside(self, words: list[str], form: str, n_words: int) -> None:
        if len(words) != n_words:
            raise self._wrong(form)
        if not self._open:
            raise self._wrong("a line 't # name' before the first node or edge")

    def _number(self, word: str) -> int:
        if not (word.isascii() and word.isdecimal() and len(word) < 10):
            raise self._wrong(f"a node number, got {word[:20]!r}")
        return int(word)

    def _wrong(self, expected: str) -> DataError:
        return DataError(f"{self._file}, line {self._line}: expected {expected}")


def _graph_set(found: Iterator[tuple[str, str, Graph]], file: Path) -> GraphSet:
    rows = list(found)
    names = [row[0] for row in rows]
    if len(set(names)) < len(names):
        seen: set[str] = set()
        double = next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise DataError(f"{file} names two graphs {double!r}; give each its own name")
    return GraphSet([row[2] for row in rows], names, [row[1] for row in rows])


def _word(word: str) -> str:
    if not word or len(word.split()) != 1 or word.split()[0] != word:
        raise ValueError(f"expected a word without white space, got {word!r}; rename it")
    return word


def _opened(file: Path, mode: str) -> TextIO:
    if file.suffix == ".gz":
        return cast(TextIO, gzip.open(file, mode, encoding="utf-8"))
    return cast(TextIO, open(file, mode, encoding="utf-8"))


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
