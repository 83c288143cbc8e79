"""The words of the package have the form that the style guide asks for."""

import ast
import io
import re
import tokenize

import pytest

from tests.architecture.tree import SOURCE, sources

INTERROGATIVE = re.compile(r"(What|Who|Whom|Whose|How|Whether|Of)\b", re.IGNORECASE)
BANNED = re.compile(r"\b(anew|whom|beside|comes of|came of|tells of)\b", re.IGNORECASE)
LONGEST = 12
VERBS = frozenset(
    """
    accept audit be become equalize fix flush go kill bring certify continue double emit fetch halve lay list maximize minimize mark
    move predict put rank repair set settle shorten widen accept add adjust advance agree aggregate allocate answer append apply approximate arrange ask
    assemble assert assign average balance begin bind block bound bring broadcast build cache calibrate
    call cancel carry cast center charge check choose clamp clear clip close cluster collect combine
    compare compile complete compose compress compute concatenate configure connect construct contribute
    convert copy correct count cover create cut deal decide declare decode decompose decrypt define
    delete deliver derive describe deserialize detect determine divide download drain draw drive drop
    embed emulate enclose encode encrypt end enrol ensure enter enumerate estimate evaluate exchange
    exclude execute exit expand export extend extract fill filter find finish fit fold forget form
    format forward gather generate get give group guarantee guess hand handle hash hold identify
    ignore implement import include index infer initialize insert install intersect invert iterate join
    keep label learn leave let lift limit link list listen load locate lock log look lower make map
    mark mask match measure memorize merge mix move multiply name narrow normalize note number observe
    open order pack pad parse partition pass permute pick place plan plot pool pop prepare present print
    probe process produce project propose prove prune publish pull push quantize query quote raise rank
    read rebuild recall receive recompute reconstruct record reduce refer refine refuse register reject
    release remember remove rename render reorder repeat replace replay reply report request require
    rescale reserve reset resolve respond restart restore restrict resume retrain retrieve retry return
    reuse reverse reweight rotate round route run sample save scale scan score seal search seek select
    send separate serialize serve set shard share shift show shrink shuffle sign simulate skip solve
    sort split spread square stack standardize start state step stop store stream stretch subtract
    suggest sum summarize suppress swap synchronize take tell terminate test throw tie time total trace
    track train transform translate transpose traverse treat try tune turn unite unmask unpack unseal
    update upload use validate verify visit vote wait walk warm warn weigh whiten wrap write yield
    """.split()  # noqa: SIM905 - a list would take a line for each word
)


def texts():
    """Yield (place, kind, text) of every docstring, comment, help text and error message."""
    for path in sources():
        source = path.read_text(encoding="utf-8")
        name = path.relative_to(SOURCE)
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
                kind = "function" if hasattr(node, "args") else "docstring"
                if docstring := ast.get_docstring(node):
                    yield f"{name}:{getattr(node, 'lineno', 1)}", kind, docstring
            elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                for argument in node.exc.args:
                    yield f"{name}:{node.lineno}", "message", literal(argument)
            elif isinstance(node, ast.keyword) and node.arg in ("help", "epilog"):
                yield f"{name}:{node.value.lineno}", "help", literal(node.value)
        for line, comment in comments(source):
            yield f"{name}:{line}", "comment", comment


def literal(node):
    """Return the text of a string or an f-string, with {} for its fields; else an empty text."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(v.value if isinstance(v, ast.Constant) else "{}" for v in node.values)
    return ""


def comments(source):
    """Yield (line, text) of each comment; comments of successive lines are one."""
    found = [
        (token.start[0], token.start[1], token.string.lstrip("#: "))
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    ]
    start, last, column, words = 0, -1, -1, []
    for line, place, text in found:
        if words and (line != last + 1 or place != column):
            yield start, " ".join(words)
            words = []
        if not words:
            start, column = line, place
        last = line
        words.append(text)
    if words:
        yield start, " ".join(words)


def summary(docstring):
    return " ".join(docstring.partition("\n\n")[0].split())


@pytest.fixture(scope="module")
def all_texts():
    return list(texts())


def test_texts_of_every_kind_are_found(all_texts):
    assert {kind for _, kind, _ in all_texts} == {
        "function", "docstring", "message", "help", "comment"
    }  # fmt: skip


def test_function_summaries_are_short(all_texts):
    long = [
        (place, summary(text))
        for place, kind, text in all_texts
        if kind == "function" and len(summary(text).split()) > LONGEST
    ]

    assert long == []


def test_function_summaries_begin_with_a_verb(all_texts):
    other = [
        (place, summary(text))
        for place, kind, text in all_texts
        if kind == "function" and re.split(r"\W", text, maxsplit=1)[0].lower() not in VERBS
    ]

    assert other == []


def test_no_text_begins_with_an_interrogative(all_texts):
    assert [(place, text[:80]) for place, _, text in all_texts if INTERROGATIVE.match(text)] == []


def test_no_text_contains_a_banned_word(all_texts):
    found = [(place, BANNED.search(text)[0]) for place, _, text in all_texts if BANNED.search(text)]

    assert found == []


def test_no_two_classes_have_one_name():
    homes = {}
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))

    assert {name: where for name, where in homes.items() if len(where) > 1} == {}
