"""Docstrings, comments, help texts and messages follow the rules of plain English."""

import ast
import io
import re
import tokenize

import pytest

from tests.architecture.tree import ROOT, SOURCE, sources

INTERROGATIVE = re.compile(r"(What|Who|Whom|Whose|How|Whether|Of)\b", re.IGNORECASE)
BANNED = re.compile(r"\b(anew|whom|beside|comes of|came of|tells of)\b", re.IGNORECASE)
MAX_WORDS = 12
PROGRAMS = ("experiments", "benchmarks", "tests")
VERBS = frozenset(
    """
    accept add advance allocate answer append apply arrange ask assign audit begin bound
    broadcast build call carry cast certify charge check choose clip close cluster collect
    combine commit compare compile compute condense connect continue convert copy count create
    decide decode delete deliver derive describe divide double download draft draw drive drop emit
    enclose encode encrypt end equalize erase estimate expand extend fetch fill find fit fix
    flush forget format generate give go group halve hash hold ignore import initialize insert
    iterate join keep kill label lay learn leave let limit list load log lower make map mark
    mask match maximize measure merge mix move multiply name number open order parse pass
    perform permute pick plan predict print process project put queue raise rank read recompute
    reconstruct record refuse relax release remove repair repeat reply report request resolve
    restore restrict return reweight round run sample save scale scan score search select send
    serialize serve set settle share shift shorten show sleep sort split standardize stop store
    stretch subtract sum suppress sync tabulate take train transfer transform truncate tune
    turn verify void wait warn widen wrap write yield
    """.split()  # noqa: SIM905 - a list would take a line for each word
)


def iterate_texts():
    """Yield (location, kind, text) of every docstring, comment, help text and error message."""
    for path in [
        *sources(),
        *(path for root in PROGRAMS for path in sorted((ROOT / root).rglob("*.py"))),
    ]:
        source = path.read_text(encoding="utf-8")
        name = path.relative_to(ROOT)
        is_test = name.parts[0] == "tests"
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
                kind = "function" if hasattr(node, "args") else "docstring"
                kind = "test" if is_test else kind
                if docstring := ast.get_docstring(node):
                    yield f"{name}:{getattr(node, 'lineno', 1)}", kind, docstring
            elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and not is_test:
                for argument in node.exc.args:
                    yield f"{name}:{node.lineno}", "message", literal_text(argument)
            elif isinstance(node, ast.keyword) and node.arg in ("help", "epilog"):
                yield f"{name}:{node.value.lineno}", "help", literal_text(node.value)
        for line, comment in iterate_comments(source):
            yield f"{name}:{line}", "comment", comment


def literal_text(node):
    """Return the text of a string or f-string with {} for fields; otherwise, an empty string."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            part.value if isinstance(part, ast.Constant) else "{}" for part in node.values
        )
    return ""


def iterate_comments(source):
    """Yield (line, text) of each comment; comments of successive lines are joined."""
    tokens = [
        (token.start[0], token.start[1], token.string.lstrip("#: "))
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    ]
    start, last_line, column, lines = 0, -1, -1, []
    for line, offset, text in tokens:
        if lines and (line != last_line + 1 or offset != column):
            yield start, " ".join(lines)
            lines = []
        if not lines:
            start, column = line, offset
        last_line = line
        lines.append(text)
    if lines:
        yield start, " ".join(lines)


def summary(docstring):
    return " ".join(docstring.partition("\n\n")[0].split())


@pytest.fixture(scope="module")
def all_texts():
    return list(iterate_texts())


def test_texts_of_every_kind_are_found(all_texts):
    assert {kind for _, kind, _ in all_texts} == {
        "function", "docstring", "message", "help", "comment", "test"
    }  # fmt: skip


def test_function_summaries_are_short(all_texts):
    violations = [
        (location, summary(text))
        for location, kind, text in all_texts
        if kind == "function" and len(summary(text).split()) > MAX_WORDS
    ]

    assert violations == []


def test_function_summaries_begin_with_a_verb(all_texts):
    violations = [
        (location, summary(text))
        for location, kind, text in all_texts
        if kind == "function" and re.split(r"\W", text, maxsplit=1)[0].lower() not in VERBS
    ]

    assert violations == []


def test_no_text_begins_with_an_interrogative(all_texts):
    assert [
        (location, text[:80]) for location, _, text in all_texts if INTERROGATIVE.match(text)
    ] == []


def test_no_text_contains_a_banned_word(all_texts):
    matches = [
        (location, BANNED.search(text)[0]) for location, _, text in all_texts if BANNED.search(text)
    ]

    assert matches == []


def test_no_two_classes_have_one_name():
    paths = {}
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                paths.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))

    assert {name: locations for name, locations in paths.items() if len(locations) > 1} == {}
