"""``run fedknn`` searches the objects of all parties; ``explain`` compares costs."""

import pytest
from typer.testing import CliRunner

from fedneighbors.cli._main import app
from fedneighbors.records import read_record

TITLES = ["graph search", "graph similarity search", "deep learning", "federated learning"] * 3
CITIES = """name,lon,lat,country
Lyon,4.85,45.75,FR
Bern,7.45,46.95,CH
Basel,7.59,47.56,CH
Paris,2.35,48.86,FR
"""


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def titles(tmp_path):
    path = tmp_path / "titles.txt"
    path.write_text("".join(f"{title} {n}\n" for n, title in enumerate(TITLES)))
    return path


@pytest.fixture
def cities(tmp_path):
    path = tmp_path / "cities.csv"
    path.write_text(CITIES)
    return path


def search(*arguments, out):
    """Run a search and return its record and output."""
    result = call("run", "fedknn", *arguments, "--out", out)
    assert result.exit_code == 0, result.stderr
    return read_record(out / "record.jsonl"), result.stdout


def read_table(record, name):
    (match,) = [table for table in record.tables if table.name == name]
    return [dict(zip(match.columns, row, strict=True)) for row in match.rows]


def test_strings_are_found_over_parties_of_zipf_sizes(titles, tmp_path):
    record, printed = search(
        *("--data", titles, "--metric", "edit", "--query", "graph searchh 4", "-k", 2),
        *("--parties", 3, "--partition", "zipf:0.6"),
        out=tmp_path / "out",
    )

    neighbors = read_table(record, "neighbors")
    assert neighbors[0]["object"] == "graph search 4"
    assert [row["distance"] for row in neighbors] == [1.0, 2.0]
    assert neighbors[0]["row"] == 5
    assert {row["party"] for row in read_table(record, "providers")} == {
        "party-0",
        "party-1",
        "party-2",
    }
    assert sum(row["holds"] for row in read_table(record, "providers")) == len(TITLES)
    assert "graph search 4" in printed
    html = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert html.count("<img") == len(record.figures)


def test_parties_are_read_from_a_column(cities, tmp_path):
    record, printed = search(
        *("--data", cities, "--metric", "haversine", "--columns", "lon,lat"),
        *("--name-column", "name", "--party-column", "country", "--query", "7.5,47", "-k", 2),
        out=tmp_path / "out",
    )

    assert [row["object"] for row in read_table(record, "neighbors")] == ["Bern", "Basel"]
    assert [row["party"] for row in read_table(record, "providers")] == ["CH", "FR"]
    assert "Basel" in printed


def test_vectors_are_read_by_a_schema(tmp_path):
    rows = "age,ward\n40,a\n41,b\n,c\n90,b\n"
    (tmp_path / "rows.csv").write_text(rows)
    (tmp_path / "query.csv").write_text("ward,age\nb,90\n")
    schema = '[columns.age]\nkind = "number"\n[columns.ward]\nkind = "category"\n'
    (tmp_path / "s.toml").write_text(schema + 'categories = ["a", "b", "c"]\n')

    record, _ = search(
        *("--data", tmp_path / "rows.csv", "--metric", "euclidean", "-k", 3, "--parties", 2),
        *("--schema", tmp_path / "s.toml", "--queries", tmp_path / "query.csv"),
        out=tmp_path / "out",
    )

    by_cells, _ = search(
        *("--data", tmp_path / "rows.csv", "--metric", "euclidean", "-k", 1, "--parties", 2),
        *("--schema", tmp_path / "s.toml", "--query", "90, b", "--query", "row:4"),
        out=tmp_path / "cells",
    )
    assert {row["object"] for row in read_table(by_cells, "neighbors")} == {"row 4"}
    neighbors = read_table(record, "neighbors")
    assert [row["object"] for row in neighbors] == ["row 4", "row 2", "row 1"]
    assert [row["distance"] for row in neighbors] == pytest.approx([0.0, 49.0, 2502**0.5])


@pytest.fixture
def patients(tmp_path):
    """Write two files of patients, and a schema."""
    (tmp_path / "north.csv").write_text("age,sex,ward\n40,f,a\n41,m,b\n,f,c\n90,m,b\n")
    (tmp_path / "south.csv").write_text("ward,age,sex\nb,80,\nc,140,m\na,50,f\nd,,m\n")
    (tmp_path / "queries.csv").write_text("sex,age,ward\nm,90,b\n")
    (tmp_path / "s.toml").write_text(
        '[columns.age]\nkind = "number"\nlow = 0\nhigh = 100\nmissing = "keep"\n'
        '[columns.sex]\nkind = "category"\ncategories = ["f", "m"]\nmissing = "keep"\n'
        '[columns.ward]\nkind = "category"\ncategories = ["a", "b", "c"]\n'
    )
    return tmp_path


def test_patients_are_found_by_a_schema(patients):
    options = (
        *("--data", f"n={patients / 'north.csv'}", "--data", f"s={patients / 'south.csv'}"),
        *("--metric", "tabular", "--schema", patients / "s.toml", "-k", 3),
    )

    by_file, _ = search(*options, "--queries", patients / "queries.csv", out=patients / "file")
    by_cells, _ = search(*options, "--query", "90, m, b", out=patients / "cells")
    by_row, _ = search(*options, "--query", "row:n:4", out=patients / "row")
    by_json, printed = search(
        *options, "--query", '{"ward": "b", "age": 90, "sex": "m"}', out=patients / "json"
    )
    partial, _ = search(*options, "--query", ",f,c", out=patients / "partial")

    assert "rows with few cells can be near by chance" in printed
    for record in (by_file, by_cells, by_row, by_json):
        near = read_table(record, "neighbors")
        assert [row["object"] for row in near] == ["n row 4", "s row 1", "n row 2"]
        assert [row["distance"] for row in near] == pytest.approx([0.0, 0.05, 0.49 / 3])
    assert read_table(partial, "neighbors")[0]["object"] == "n row 3"
    assert call("explain", *options, "--query", "row:s:1").exit_code == 0


def test_filters_use_columns_of_each_file(patients):
    options = (
        *("--data", f"n={patients / 'north.csv'}", "--data", f"s={patients / 'south.csv'}"),
        *("--metric", "tabular", "--schema", patients / "s.toml", "--query", "90,m,b"),
    )

    record, _ = search(
        *options, "--where", '{"ward": "b", "not": {"age": {"<": 50}}}', out=patients / "out"
    )
    wrong = call("run", "fedknn", *options, "--where", '{"wards": "b"}')

    found = [row["object"] for row in read_table(record, "neighbors")]
    assert found == ["n row 4", "s row 1"]
    assert "north.csv has no column 'wards'; its columns are 'age'" in wrong.stderr
    assert "did you mean 'ward'?" in wrong.stderr


def test_molecules_are_filtered_by_a_substructure(tmp_path):
    (tmp_path / "m.smi").write_text("CCO ethanol\nc1ccccc1O phenol\nc1ccccc1 benzene\n")
    where = '{"smiles": {"substructure": "c1ccccc1"}}'

    record, _ = search(
        *("--data", tmp_path / "m.smi", "--metric", "tanimoto", "--query", "CCO", "--parties", 2),
        *("--where", where),
        out=tmp_path / "out",
    )

    found = {row["object"] for row in read_table(record, "neighbors")}
    assert found == {"phenol", "benzene"}


@pytest.mark.parametrize(
    ("name", "text"), [("q.txt", "t # one\nv 0 C\n"), ("q.jsonl", '{"s": "C"}'), ("q.smi", "C a")]
)
def test_queries_of_molecules_have_a_format_of_their_own(tmp_path, name, text):
    (tmp_path / "m.smi").write_text("CCO ethanol\nC methane\n")
    (tmp_path / name).write_text(text)

    record, _ = search(
        *("--data", tmp_path / "m.smi", "--metric", "graph_edit", "--parties", 2, "-k", 1),
        *("--queries", tmp_path / name),
        out=tmp_path / "out",
    )

    assert [row["object"] for row in read_table(record, "neighbors")] == ["methane"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--metric", "tabular"), "needs --schema"),
        (("--metric", "tabular", "--schema", "open.toml"), "low and high of column 'age'"),
        (("--metric", "tabular", "--schema", "s.toml", "--query", "1,f"), "expected the cells"),
        (("--metric", "tabular", "--schema", "s.toml", "--query", "1,f,"), "in column 'ward'"),
        (
            ("--metric", "tabular", "--schema", "s.toml", "--query", "1,female,a"),
            "column 'sex': expected one of 'f', 'm', or an empty cell",
        ),
        (
            ("--metric", "tabular", "--schema", "s.toml", "--query", '{"wards": "a"}'),
            "expected the columns 'age', 'sex', 'ward', got 'wards'",
        ),
        (("--metric", "edit", "--schema", "s.toml"), "the columns of vectors or rows"),
    ],
)
def test_rows_without_a_usable_schema_or_cell_are_refused(patients, options, words):
    (patients / "open.toml").write_text('[columns.age]\nkind = "number"\n')
    files = [patients / part if part.endswith(".toml") else part for part in options]

    options = ("--data", patients / "north.csv", "--parties", 2, *files, "--query", "row:1")
    result = call("run", "fedknn", *options, "--out", patients / "out")

    assert result.exit_code != 0
    assert words in " ".join(result.stderr.replace("│", " ").split())


def test_queries_are_given_by_row_number_or_in_a_file(titles, tmp_path):
    (tmp_path / "queries.txt").write_text("deep learning 2\nfederated learning 3\n")

    record, _ = search(
        *("--data", titles, "--metric", "edit", "--parties", 2, "-k", 1),
        *("--query", "row:2", "--queries", tmp_path / "queries.txt"),
        out=tmp_path / "out",
    )

    neighbors = [(row["object"], row["distance"]) for row in read_table(record, "neighbors")]
    assert neighbors == [
        ("graph similarity search 1", 0.0),
        ("deep learning 2", 0.0),
        ("federated learning 3", 0.0),
    ]
    assert len(read_table(record, "cost")) == 3


def test_records_shorten_long_strings_and_keep_their_row(tmp_path):
    (tmp_path / "long.txt").write_text("a" * 500 + "\n" + "b" * 500 + "\n")

    record, _ = search(
        *("--data", tmp_path / "long.txt", "--metric", "edit", "--query", "row:2", "-k", 1),
        *("--parties", 2),
        out=tmp_path / "out",
    )

    (neighbor,) = read_table(record, "neighbors")
    assert (neighbor["object"], neighbor["row"]) == ("b" * 200 + "\N{HORIZONTAL ELLIPSIS}", 2)


def test_neighbors_of_the_first_of_many_queries_are_printed(titles, tmp_path):
    record, printed = search(
        *("--data", titles, "--metric", "edit", "--queries", titles, "-k", 1, "--parties", 2),
        out=tmp_path / "out",
    )

    assert len(read_table(record, "neighbors")) == len(TITLES)
    assert printed.count("Nearest to") == 10
    assert f"{len(TITLES) - 10} more queries are in the record." in printed


@pytest.mark.parametrize(
    ("name", "text", "options", "nearest"),
    [
        ("v.csv", "a,b\n0,0\n5,5\n", ["--metric", "manhattan", "--query", "4,5"], "row 2"),
        ("p.csv", "a,b\n0,0\n5,5\n", ["--metric", "inner_product", "--query", "1,5"], "row 2"),
        ("w.txt", "a b c\nd e\n", ["--metric", "jaccard", "--query", "e f"], "d e"),
        ("m.smi", "CCO one\nCCCCCC six\n", ["--metric", "graph_edit", "--query", "CCN"], "one"),
        ("m.smi", "CCO one\nCCCCCC six\n", ["--metric", "tanimoto", "--query", "CCCC"], "six"),
        ("g.txt", "t # x\nv 0 C\nt # y\nv 0 O\n", ["--metric", "graph_edit", "--query", "O"], "y"),
    ],
)  # fmt: skip
def test_every_kind_of_object_can_be_searched(name, text, options, nearest, tmp_path):
    (tmp_path / name).write_text(text)

    record, _ = search(
        *("--data", tmp_path / name, *options, "-k", 1, "--parties", 2), out=tmp_path / "out"
    )

    assert [row["object"] for row in read_table(record, "neighbors")] == [nearest]


def test_similarities_are_next_to_distances(tmp_path):
    (tmp_path / "w.txt").write_text("a b c\nd e\n")

    record, printed = search(
        *("--data", tmp_path / "w.txt", "--metric", "jaccard", "--query", "a b", "-k", 2),
        *("--parties", 2),
        out=tmp_path / "out",
    )

    near = read_table(record, "neighbors")
    assert "similarity" in printed
    assert [row["similarity"] for row in near] == pytest.approx([2 / 3, 0.0])
    assert all(row["similarity"] == 1 - row["distance"] for row in near)


def test_a_limit_uses_only_the_first_objects(titles, tmp_path):
    record, _ = search(
        *("--data", titles, "--metric", "edit", "--limit", 2, "--parties", 1),
        *("--query", "x", "-k", 9),
        out=tmp_path / "out",
    )

    assert len(read_table(record, "neighbors")) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--query", "x", "--parties", 99], "there are only 12 rows"),
        (["--query", "x", "--columns", "title"], "has no columns"),
        (["--queries", "none.txt"], "there is no file none.txt"),
        (["--query", "x", "--algorithm", "dann*"], "needs a privacy cost per query"),
        (
            ["--query", "x", "--algorithm", "hufu", "--epsilon", 1],
            "reveals information about other parties",
        ),
        (["--query", "x", "--epsilon", 1], "delta"),
        (["--query", "x", "--ledger", "none.ledger"], "none.ledger"),
        (["--query", "x", "--partition", "zipf:-1"], "factor must be finite"),
    ],
)
def test_an_error_is_one_line(titles, tmp_path, options, message):
    arguments = ["run", "fedknn", "--data", titles, "--metric", "edit", "--parties", 2]

    result = call(*arguments, *options, "--out", tmp_path / "out")

    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "give a --query"),
        (["--query", "row:13"], "expected a row from 1 to 12"),
        (["--query", "row:0"], "expected a row from 1 to 12"),
        (["--query", "x", "--partition", "dirichlet"], "expected --partition uniform"),
        (["--query", "x", "--partition", "uniform:2"], "expected --partition uniform"),
        (["--query", "x", "--partition", "zipf:much"], "expected a number after zipf:"),
        (["--query", "x", "--partition", "natural"], "needs --party-column"),
        (["--query", "x", "-k", 0], "0 is not in the range"),
        (["--query", "x", "--delay", -1], "-1.0 is not in the range"),
        (["--query", "x", "--algorithm", "magic"], "magic"),
        (["--query", "x", "--delta", "1e-6"], "need --epsilon"),
        (["--query", "x", "--guarantee", "certified"], "need --epsilon"),
        (["--query", "x", "--epsilon", "much"], "expected epsilon as a number"),
        (["--query", "x", "--epsilon", "0"], "expected epsilon above 0"),
        (["--query", "x", "--metric", "hamming"], "hamming"),
    ],
)
def test_an_invalid_command_line_is_a_usage_error(titles, tmp_path, options, message):
    result = call(
        *("run", "fedknn", "--data", titles, "--metric", "edit", *options),
        *("--out", tmp_path / "out"),
    )

    output = " ".join(result.stderr.replace("\N{BOX DRAWINGS LIGHT VERTICAL}", " ").split())
    assert result.exit_code == 2
    assert message in output
    assert not (tmp_path / "out").exists()


def list_neighbors(record):
    return [(row["object"], row["distance"]) for row in read_table(record, "neighbors")]


@pytest.mark.parametrize("algorithm", ["dann", "eager", "hufu", "hufu+", "dann*"])
def test_every_algorithm_finds_the_neighbors_of_the_baseline(algorithm, titles, tmp_path):
    query = ["--data", titles, "--metric", "edit", "--query", "graph", "-k", 4, "--parties", 3]
    terms = ["--epsilon", 1, "--delta", "1e-6"] if algorithm == "dann*" else []

    baseline, _ = search(*query, "--algorithm", "baseline", out=tmp_path / "baseline")
    record, _ = search(*query, "--algorithm", algorithm, *terms, out=tmp_path / "out")

    assert list_neighbors(record) == list_neighbors(baseline)
    assert [row["algorithm"] for row in read_table(record, "cost")] == [algorithm]
    assert [row["answer"] for row in read_table(record, "cost")] == ["exact"]


def test_parties_may_be_processes_behind_slow_links(titles, tmp_path):
    record, _ = search(
        *("--data", titles, "--metric", "edit", "--query", "graph", "-k", 2, "--parties", 2),
        *("--workers", "processes", "--delay", 20),
        out=tmp_path / "out",
    )

    assert [row["distance"] for row in read_table(record, "neighbors")] == [9.0, 9.0]
    assert record.parameters["round trip in ms"] == 20


def test_private_queries_are_reported_and_charged_once(titles, tmp_path):
    record, _ = search(
        *("--data", titles, "--metric", "edit", "--parties", 2, "-k", 2),
        *("--query", "graph", "--query", "deep", "--query", "graph"),
        *("--algorithm", "dann*", "--epsilon", "1/2", "--guarantee", "certified"),
        out=tmp_path / "out",
    )

    assert (record.privacy["epsilon"], record.privacy["delta"]) == (1.0, 0.0)
    assert "privacy spent" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_a_search_is_refused_once_the_ledger_is_spent(titles, tmp_path):
    ledger = tmp_path / "broker.ledger"
    for party in ("party-0", "party-1"):
        budget = ["--party", "broker", "--dataset", party, "--epsilon", 1, "--delta", "1e-5"]
        assert call("ledger", "budget", ledger, *budget).exit_code == 0
    arguments = ["--data", titles, "--metric", "edit", "--parties", 2, "-k", 2, "--epsilon", 1]
    arguments += ["--delta", "1e-6", "--algorithm", "dann*", "--ledger", ledger]

    record, _ = search(*arguments, "--query", "graph", out=tmp_path / "first")
    refused = call("run", "fedknn", *arguments, "--query", "deep", "--out", tmp_path / "second")

    assert record.privacy["epsilon"] == 1.0
    assert refused.exit_code == 1
    assert "the budget of data set 'party-0'" in refused.stderr
    assert not (tmp_path / "second").exists()


def test_the_automatic_choice_of_an_algorithm_is_reported(titles, tmp_path):
    record, printed = search(
        *("--data", titles, "--metric", "edit", "--query", "graph", "--parties", 3),
        out=tmp_path / "out",
    )

    (cost,) = read_table(record, "cost")
    assert cost["algorithm"] == "eager"
    (expectation,) = [note for note in record.notes if "the first time budget is" in note]
    assert expectation in " ".join(printed.split())


@pytest.mark.parametrize(
    ("terms", "algorithms"),
    [
        ([], {"baseline", "dann", "eager"}),
        (["--epsilon", 3, "--delta", "1e-6"], {"baseline", "dann*"}),
    ],
)
def test_explain_prints_each_algorithms_cost(terms, algorithms, titles):
    arguments = ["--data", titles, "--metric", "edit", "--query", "graph", "-k", 2]

    result = call("explain", *arguments, "--parties", 3, *terms)

    assert result.exit_code == 0, result.stderr
    first_words = [line.split()[0] for line in result.stdout.splitlines() if line.strip()]
    assert first_words[0].rstrip(":") in algorithms
    assert algorithms <= set(first_words)
    assert "The 2 nearest to graph" in result.stdout


def test_explain_needs_a_query(titles):
    result = call("explain", "--data", titles, "--metric", "edit")

    assert result.exit_code == 2
    assert "give a --query" in result.stderr


def test_an_error_names_the_malformed_line_of_a_file(tmp_path):
    path = tmp_path / "graphs.txt"
    path.write_text("t # one\nv 0 C\ne 0 1 1\n")

    result = call("run", "fedknn", "--data", path, "--metric", "graph_edit", "--query", "C")

    assert result.exit_code == 1
    assert f"{path}, line 3" in result.stderr
