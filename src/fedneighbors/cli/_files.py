"""Command-line options of files: names of parties, separators, missing cells, columns."""

import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperOption

if TYPE_CHECKING:
    from fedneighbors.datasets._text_format import TextFormat

_PANEL = "Files"
_SPLIT_OPTIONS = ("partition", "parties", "alpha", "factor", "classes_per_party", "party_column")
_INPUTS = ("data", "schema", "model", "name", "path", "records")  # options that name files
_TAB = {"tab": "\t", "\\t": "\t"}

DropOption = Annotated[
    list[str] | None,
    typer.Option("--drop", help="Column to leave out; repeatable.", rich_help_panel=_PANEL),
]
IdOption = Annotated[
    str | None,
    typer.Option(
        "--id",
        help="Column that identifies a row, such as a patient: left out of the features.",
        rich_help_panel=_PANEL,
    ),
]
_TEXT_OPTIONS: Mapping[str, Any] = {
    "missing": Annotated[
        list[str] | None,
        typer.Option(
            help="Text that marks a missing cell, such as '-'; repeatable. The empty cell, NA, "
            "N/A, #N/A, NULL, NaN (also in lower case), None, '.' and '?' always do.",
            rich_help_panel=_PANEL,
        ),
    ],
    "delimiter": Annotated[
        str | None,
        typer.Option(
            help="Separator of cells: one character or 'tab'; by default as in the header.",
            rich_help_panel=_PANEL,
        ),
    ],
    "decimal": Annotated[
        str | None,
        typer.Option(
            help="Decimal separator, '.' or ','; found by default.",
            rich_help_panel=_PANEL,
        ),
    ],
    "encoding": Annotated[
        str | None,
        typer.Option(help="Encoding, such as cp1252, if not UTF-8.", rich_help_panel=_PANEL),
    ],
}


class StrictCommand(TyperCommand):
    """Command that refuses to ignore data or a split of rows, and to replace an input.

    The first value of a repeated ``--data`` of one value would be ignored, and a split together
    with a file for each party or a column of parties.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; raise if data would be ignored or replaced."""
        _, extra, order = self.make_parser(ctx).parse_args(args=list(args))
        if extra and any(param.name == "data" and param.multiple for param in self.params):
            raise typer.BadParameter(f"expected an option, such as --data, before each of {extra}")
        single = [
            param
            for param in order
            if isinstance(param, TyperOption) and param.name == "data" and not param.multiple
        ]
        if len(single) > 1:
            raise typer.BadParameter("--data is given twice and takes one value")
        rest = super().parse_args(ctx, args)
        data = ctx.params.get("data")
        has_files = isinstance(data, list | tuple) and len(data) > 1
        has_column = ctx.params.get("party_column") is not None
        reason = (
            "several --data exclude each other: each file is one party"
            if has_files
            else "--party-column exclude each other: each of its values is one party"
        )
        for option in _SPLIT_OPTIONS if has_files or has_column else ():
            source = ctx.get_parameter_source(option)
            is_given = source is not None and source.name == "COMMANDLINE"
            is_natural = option == "party_column" or ctx.params.get(option) == "natural"
            if is_given and (has_files or not is_natural):
                raise typer.BadParameter(f"--{option.replace('_', '-')} and {reason}")
        for option in ("out", "report"):
            out = ctx.params.get(option)
            if isinstance(out, str | Path):  # converted later
                check_output(Path(out), *(ctx.params.get(name) for name in _INPUTS))
        return rest


def add_command(
    group: typer.Typer, command: Callable[..., None], text: str, others: str = ""
) -> None:
    """Add a command whose help ends with examples."""
    group.command(cls=StrictCommand, epilog=example(text) + others)(command)


def example(text: str) -> str:
    """Return the last line of a command's help; the text follows ``fedneighbors``."""
    return f"Example: [bold]fedneighbors {text}[/bold]"


def check_output(out: Path, *inputs: Any) -> None:
    """Raise if a file to write is one of the inputs.

    Parameters
    ----------
    out : Path
        File to write.
    *inputs
        Values of the other options: paths, NAME=PATH, lists of them, or anything else.
    """
    values = [v for each in inputs for v in (each if isinstance(each, list | tuple) else [each])]
    texts = [str(value) for value in values if isinstance(value, str | Path)]
    for path in (*texts, *(text.partition("=")[2] for text in texts)):
        if out.is_file() and os.path.isfile(path) and os.path.samefile(path, out):
            raise typer.BadParameter(
                f"the command reads {path} and would replace it with its output; name another file"
            )


def text_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of text files to a command.

    The command gets them as its argument ``text_format``.
    """
    own = dict(inspect.signature(command).parameters)
    own.pop("text_format", None)
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
        for name, option in _TEXT_OPTIONS.items()
    ]

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        given = {name: arguments.pop(name, None) for name in _TEXT_OPTIONS}
        command(**arguments, text_format=_text_format(**given))

    params = [*(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own.values()), *added]
    run.__signature__ = inspect.Signature(params)  # type: ignore[attr-defined]
    run.__annotations__ = {param.name: param.annotation for param in params}
    return run


def _text_format(
    missing: list[str] | None, delimiter: str | None, decimal: Any, encoding: str | None
) -> "TextFormat":
    from fedneighbors.datasets._text_format import MISSING_CELLS, TextFormat

    try:
        return TextFormat(
            _TAB.get(delimiter or "", delimiter),
            decimal,
            encoding or "utf-8",
            (*MISSING_CELLS, *(missing or ())),
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


@dataclass(frozen=True)
class Files:
    """Sources of ``--data``, and the columns to leave out.

    Parameters
    ----------
    sources : mapping of str to str
        Path of each party's file; or one path or name of a data set, under the name "".
    drop : tuple of str
        Columns to leave out.
    text_format : TextFormat, optional
        Form of text.
    """

    sources: Mapping[str, str]
    drop: tuple[str, ...] = ()
    text_format: "TextFormat | None" = None

    @property
    def title(self) -> str:
        """Return the names of the files."""
        return ", ".join(Path(source).name for source in self.sources.values())

    @property
    def single(self) -> str | None:
        """Return the source if there is only one."""
        return self.sources.get("")


def choose_files(
    data: Sequence[str],
    drop: Sequence[str] | None,
    identifier: str | None,
    text_format: "TextFormat",
) -> Files:
    """Return the files of ``--data``, without the columns of ``--drop`` and ``--id``."""
    left_out = [*(drop or ()), *([] if identifier is None else [identifier])]
    return Files(parse_sources(data), tuple(dict.fromkeys(left_out)), text_format)


def is_file(source: str) -> bool:
    """Return whether a source is a file, not a named data set."""
    path = Path(source)
    return not source.startswith("openml:") and (
        path.is_file() or bool(path.suffix) or len(path.parts) > 1
    )


def parse_sources(data: Sequence[str]) -> dict[str, str]:
    """Return the file of each party from ``--data``.

    A single one is under the name "".

    Raises
    ------
    typer.BadParameter
        If one of several is not a file, a name repeats, or a single file has a name.
    """
    if len(data) == 1:
        name, path = _split_name(data[0])
        if name:
            raise typer.BadParameter(
                f"--data {data[0]} names the party of a single file; give a file for each party, "
                f"or --data {path}, whose rows are split"
            )
        return {"": path}
    sources: dict[str, str] = {}
    for text in data:
        name, path = _split_name(text)
        if not is_file(path):
            raise typer.BadParameter(
                f"{path!r} is not a file; several --data are one file for each party"
            )
        name = name or Path(path).name.split(".")[0]
        if name in sources:
            raise typer.BadParameter(
                f"two files are of party {name!r}; name the parties with --data NAME=FILE"
            )
        sources[name] = path
    return sources


def _split_name(text: str) -> tuple[str, str]:
    """Return name and path of NAME=PATH; the name is empty without one."""
    name, equals, path = text.partition("=")
    if not equals or "/" in name or Path(text).is_file():
        return "", text
    if not name.strip() or not path:
        raise typer.BadParameter(f"expected NAME=FILE, got {text!r}")
    return name.strip(), path
