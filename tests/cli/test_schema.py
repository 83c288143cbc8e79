"""``fedneighbors schema``: draft a schema, check a table against one."""

import pytest
from typer.testing import CliRunner

from fedneighbors.cli._main import app
from fedneighbors.datasets import CategoricalColumn, NumericColumn, Schema, SetColumn


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def draft(tmp_path):
    (tmp_path / "public.csv").write_text("age,ward,died\n41,a,no\n67,b,yes\n,c,no\n")
    out = tmp_path / "schema.toml"
    result = call("schema", "draft", "--data", tmp_path / "public.csv", "--label", "died",
                  "--out", out)  # fmt: skip
    return out, result


def test_a_draft_has_ranges_and_warns_of_the_disclosure(draft):
    out, result = draft

    assert result.exit_code == 0, result.output
    assert Schema.load(out) == Schema(
        (
            NumericColumn("age", 41.0, 67.0, 54.0),
            CategoricalColumn("ward", ("a", "b", "c"), "keep"),
        ),
        "died",
        ("no", "yes"),
    )
    assert "a draft from private rows is itself a disclosure" in result.stderr
    assert "Drafted from rows. If these are private" in out.read_text("utf-8")


def test_a_draft_leaves_out_columns_and_reads_other_forms_of_text(tmp_path):
    rows = "".join(f"p{n};{n},5;x;{'yes' if n % 2 else 'no'}\n" for n in range(300))
    (tmp_path / "public.csv").write_bytes(
        f"patient;dose;ort;died\n{rows}p;k.A.;ü;no\n".encode("cp1252")
    )
    out = tmp_path / "schema.toml"
    options = ("--data", tmp_path / "public.csv", "--label", "died", "--out", out)

    refused = call("schema", "draft", *options, "--encoding", "cp1252")
    result = call(
        *("schema", "draft", *options, "--id", "patient", "--drop", "ort"),
        *("--encoding", "cp1252", "--missing", "k.A."),
    )

    assert "column 'dose' of" in refused.stderr
    assert "numbers, but the cell in data row 301 is no number; correct" in refused.stderr
    assert result.exit_code == 0, result.stderr
    assert Schema.load(out).columns == (NumericColumn("dose", 0.5, 299.5, 150.0),)
    out.unlink()
    unknown = call("schema", "draft", *options, "--encoding", "cp1252", "--drop", "town")
    assert "has no column 'town'" in unknown.stderr


def test_a_draft_overwrites_no_file(draft, tmp_path):
    out, _ = draft

    result = call("schema", "draft", "--data", tmp_path / "public.csv", "--out", out)

    assert result.exit_code == 1
    assert "schema.toml exists; delete it, or name another file with --out" in result.stderr


def test_a_check_reads_other_forms_of_text(draft, tmp_path):
    out, _ = draft
    (tmp_path / "rows.csv").write_text("ward\tage\tdied\na\t50,5\tno\nb\tNA\tyes\n")
    command = ("schema", "check", "--data", tmp_path / "rows.csv", "--schema", out)

    plain, with_commas = call(*command), call(*command, "--decimal", ",")

    assert "column 'age': 1 cells are invalid" in plain.stdout
    assert "an example from your rows: '50,5'" in plain.stdout
    assert "invalid, 0 clipped" not in with_commas.stdout


def test_a_check_counts_clipped_and_filled_cells_and_lost_rows(draft, tmp_path):
    out, _ = draft
    (tmp_path / "rows.csv").write_text("ward,age,died\na,50,no\nz,500,yes\nb,,?\nb,1\n")

    result = call("schema", "check", "--data", tmp_path / "rows.csv", "--schema", out)

    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["age", "number", "1", "1", "54.0"] in lines
    assert ["ward", "category", "0", "1", "keep"] in lines
    assert "2 of 4 rows are used" in result.stdout
    assert "1 rows have another number of cells than the header" in result.stdout
    assert "1 rows have no declared label" in result.stdout


def test_a_check_without_a_column_fails_in_one_line(draft, tmp_path):
    out, _ = draft
    (tmp_path / "rows.csv").write_text("age,died\n50,no\n")

    result = call("schema", "check", "--data", tmp_path / "rows.csv", "--schema", out)

    assert result.exit_code == 1
    assert "has no column 'ward'" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_draft_leaves_out_columns_that_identify_rows(tmp_path):
    lines = [f"p{row},{row},{row % 3},note {row},{row}" for row in range(40)]
    header = "patient,visit_id,ward,remark,age"
    (tmp_path / "public.csv").write_text("\n".join([header, *lines]))
    out = tmp_path / "schema.toml"

    result = call("schema", "draft", "--data", tmp_path / "public.csv", "--label", "ward",
                  "--out", out)  # fmt: skip

    assert result.exit_code == 0, result.output
    assert Schema.load(out).column_names == ("age",)
    text = out.read_text("utf-8")
    for name in ("patient", "visit_id", "remark"):
        assert f'# left out, as it identifies rows: "{name}"' in text
    assert "left out, as they identify rows: patient, visit_id, remark" in result.stderr


def test_a_check_counts_sets_and_shows_an_example_of_wrong_cells(tmp_path):
    columns = (CategoricalColumn("sex", ("f", "m"), "keep"), SetColumn("codes"))
    (tmp_path / "s.toml").write_text(Schema(columns).to_toml())
    (tmp_path / "rows.csv").write_text("sex,codes\nf,I10 E11\nfemale,I10;E11\n,\n")

    result = call(
        "schema", "check", "--data", tmp_path / "rows.csv", "--schema", tmp_path / "s.toml"
    )

    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["sex", "category", "0", "2", "keep"] in lines
    assert ["codes", "set", "0", "1", "drop"] in lines
    assert "column 'sex': 1 cells are invalid, 0 clipped; an example" in result.stdout
    assert "from your rows: 'female'" in result.stdout
    assert "1 join codes without spaces; an example from your rows: 'I10;E11'" in result.stdout
    assert "2 of 3 rows are used" in result.stdout


def test_a_draft_refuses_a_dash_among_numbers(tmp_path):
    (tmp_path / "public.csv").write_text("age,died\n41,no\n-,yes\n-,no\n")
    command = ["schema", "draft", "--data", tmp_path / "public.csv", "--label", "died"]

    refused = call(*command, "--out", tmp_path / "schema.toml")
    drafted = call(*command, "--missing", "-", "--out", tmp_path / "schema.toml")

    assert refused.exit_code == 1
    assert "the cell in data row 2 is '-'; list it as missing (--missing -)" in refused.stderr
    assert drafted.exit_code == 0, drafted.output
    assert Schema.load(tmp_path / "schema.toml").columns == (
        NumericColumn("age", 41.0, 41.0, 41.0),
    )


def test_a_draft_refuses_dates(tmp_path):
    (tmp_path / "public.csv").write_text("age,seen,died\n41,2024-05-01,no\n67,2024-06-01,yes\n")

    refused = call("schema", "draft", "--data", tmp_path / "public.csv", "--label", "died",
                   "--out", tmp_path / "schema.toml")  # fmt: skip

    assert "has dates, which are not numbers or categories" in refused.stderr
    assert "(--drop seen)" in refused.stderr
    assert not (tmp_path / "schema.toml").exists()


def test_a_check_names_text_of_another_encoding(draft, tmp_path):
    (tmp_path / "rows.csv").write_bytes("age,ward,died\n41,ä,no\n".encode("latin-1"))

    result = call("schema", "check", "--data", tmp_path / "rows.csv", "--schema", draft[0])

    assert "1 cells are text of another encoding; state it (--encoding)" in result.stdout


def test_a_draft_refuses_a_measurement_as_label(tmp_path):
    rows = [f"{row},{row + 0.5}" for row in range(40)]
    (tmp_path / "public.csv").write_text("\n".join(["age,cost", *rows]))
    command = ["schema", "draft", "--data", tmp_path / "public.csv", "--out", tmp_path / "s.toml"]

    refused = call(*command, "--label", "cost")
    noted = call(*command, "--label", "age")

    assert refused.exit_code == 1
    assert "label 'cost' of" in refused.stderr
    assert "has 40 distinct numbers with decimals, which look like a measurement" in refused.stderr
    assert noted.exit_code == 0, noted.output
    assert "note: label 'age' has 40 distinct numbers in 40 rows" in noted.stderr
