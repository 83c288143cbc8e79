"""Configuration files, and the sources of a provider's collections in them."""

import re
import tomllib
from collections.abc import Sequence
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from fedneighbors.datasets._object_cells import METRIC_KINDS
from fedneighbors.datasets._objects import MOLECULE_FILES
from fedneighbors.datasets._table import suggest
from fedneighbors.errors import DataError
from fedneighbors.sources._sql import has_password

VOTES = "votes"
"""In place of a metric: the providers offer classifiers, and no objects."""

KINDS: dict[str, str] = {**METRIC_KINDS, VOTES: "voters"}
"""Kind of object of each metric."""

SECRET = "source"
"""Type of the errors that do not show the input."""

Whole = Annotated[int, Field(strict=True)]
"""A number without a fraction; neither true nor a text in quotes."""

Number = Annotated[float, Field(strict=True)]
Flag = Annotated[bool, Field(strict=True)]

_UNKNOWN = "extra_forbidden"  # pydantic's type of the errors of unknown keys
_MAX_FAULTS = 5  # errors in a message
_TAGS = {("source", tag) for tag in ("loaded", "patients", "model", "pushed")}  # no keys of files
C = TypeVar("C", bound="Config")


class ConfigSection(BaseModel):
    """Table of a configuration file."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Config(ConfigSection):
    """Configuration file.

    Parameters
    ----------
    format : 1
        Version of the format.
    folder : path
        Folder of the file, to which paths are relative.
    """

    format: Literal[1]
    folder: Path = Field(default=Path(), exclude=True)

    @classmethod
    def read(cls: type[C], path: Path) -> C:
        """Read a file.

        Raises
        ------
        DataError
            If the file does not exist or is no TOML, or keys are missing, unknown or invalid; the
            error names them, unknown ones first.
        OSError
            If the file cannot be read.
        """
        try:
            content = tomllib.loads(path.read_text("utf-8"))
            return cls.model_validate({**content, "folder": path.parent})
        except ValidationError as error:
            faults = sorted(error.errors(), key=lambda one: one["type"] != _UNKNOWN)
            text = ""
            for one in map(cls._describe, faults[:_MAX_FAULTS]):
                text += one + (" " if one.endswith("?") else "; ")
            if len(faults) > _MAX_FAULTS:
                text += f"and {len(faults) - _MAX_FAULTS} more errors"
            raise DataError(f"{path}: {text.rstrip('; ')}") from None
        except FileNotFoundError:
            raise DataError(f"there is no file {path}; name it with --config") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise DataError(f"{path}: {error}") from None

    def path(self, name: str | Path) -> Path:
        """Return a path of the file relative to its folder."""
        return self.folder / name

    @classmethod
    def _describe(cls, error: Any) -> str:
        """Return the key of an error, and what is wrong."""
        loc = error["loc"]
        pairs = pairwise(("", *map(str, loc)))
        place = ".".join(key for before, key in pairs if (before, key) not in _TAGS)
        text = f"{error['msg'][:1].lower()}{error['msg'][1:]}"
        if not isinstance(error["input"], dict | list):  # it may hold a password
            text += f", got {error['input']!r}"
        if error["type"] == _UNKNOWN:
            text = "unknown key" + suggest([str(loc[-1])], _list_keys([cls], loc[:-1]))
        elif error["type"] == "missing":
            text = "this key is required" + ("; write format = 1" if loc == ("format",) else "")
        elif error["type"] == SECRET:  # the input is not shown
            text = str(error["msg"])
        return f"{place}: {text}" if place else text


def _list_keys(models: list[type[BaseModel]], place: Sequence[object]) -> list[str]:
    """Return the keys of the tables at a place."""
    for key in place:
        found = [
            field.annotation
            for model in models
            for name, field in model.model_fields.items()
            if key in (name, field.alias)
        ]
        if found:  # otherwise a name, position or tag of the tables
            models = [model for one in found for model in _find_models(one)]
    return [f.alias or n for one in models for n, f in one.model_fields.items() if not f.exclude]


def _find_models(annotation: Any) -> list[type[BaseModel]]:
    """Return the tables of an annotation."""
    if parts := get_args(annotation):
        return [model for one in parts for model in _find_models(one)]
    return [annotation] if hasattr(annotation, "model_fields") else []


class SourceSection(ConfigSection):
    """Objects of a provider: a file, or a query to a database.

    ``id`` is the column with the name of each object, which must be unique. It is required for
    ``sql``; objects of a file without it have their names there, if any, or are numbered.
    ``unreadable = "skip"`` leaves out molecules of ``.smi`` and ``.sdf`` files that cannot be read.
    """

    file: str | None = None
    database: str | None = None
    sql: str | None = None
    password_file: str | None = None
    timeout_s: Number = Field(default=600.0, gt=0)
    columns: tuple[str, ...] = ()
    id: str | None = None
    unreadable: Literal["refuse", "skip"] = "refuse"

    @model_validator(mode="after")
    def _check(self) -> "SourceSection":
        names, message = (self.file, self.database, self.sql), _find_fault(self.database)
        if [name is None for name in names] not in ([False, True, True], [True, False, False]):
            message = "expected either file, or database and sql"
        elif self.sql is not None and self.id is None:
            message = "expected id, the column with the names of the objects, next to sql"
        elif self.unreadable == "skip" and not MOLECULE_FILES & set(Path(self.file or "").suffixes):
            message = "expected a .smi, .smiles or .sdf file next to unreadable; correct other ones"
        if message:
            raise PydanticCustomError(SECRET, message)
        return self


def _find_fault(database: str | None) -> str:
    if database is not None and not re.match("(postgresql|duckdb|sqlite):", database):
        return "expected a database postgresql://..., duckdb:path or sqlite:path"
    if database is not None and has_password(database):
        return "the database has a password; put it into a file, and name password_file"
    return ""


class PatientsSection(SourceSection):
    """Patients as rows of age, sex and diagnoses on a reference date.

    ``omop``: a database, or ``file``, a folder of CSV; ``fhir``: ``file``, a bundle or a bulk
    export, or a folder of them. ``system`` is the coding system in FHIR, by default any.
    """

    kind: Literal["omop", "fhir"]
    reference_date: date
    cdm_schema: str = Field(default="", pattern=r"^([A-Za-z_][A-Za-z0-9_.]*)?$")
    codes: Literal["concept_code", "concept_id", "source_value"] = "concept_code"
    system: str = ""
    id: str = "patient"

    @model_validator(mode="after")
    def _check(self) -> "PatientsSection":
        others = {"system"} if self.kind == "omop" else {"cdm_schema", "codes", "database"}
        unknown = sorted(self.model_fields_set & {"sql", "columns", "id", "unreadable", *others})
        message = _find_fault(self.database)
        if unknown:
            message = f"a source of kind {self.kind!r} has no key {unknown[0]!r}"
        elif (self.file is None) == (self.database is None):
            message = "expected either file or database"
        if message:
            raise PydanticCustomError(SECRET, message)
        return self


class ModelSection(ConfigSection):
    """A fitted classifier of scikit-learn, written by ``skops.io.dump``, that votes.

    ``held_out`` is a file of rows with labels that the model has not seen: its votes are weighed by
    the score on them. ``trusted`` lists types of objects that skops does not know as safe.
    """

    kind: Literal["model"]
    file: str
    held_out: str
    trusted: tuple[str, ...] = ()


class PushedSection(BaseModel):
    """Objects that stay in a database; ``kind`` names an entry point of ``fedneighbors.sources``.

    Further keys are options of that source.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    kind: str


def check_metric(name: str) -> str:
    """Return a metric's name; raise ValueError if there is none."""
    if name not in KINDS:
        raise ValueError(f"expected one of {', '.join(KINDS)}")
    return name


def name_section(source: Any) -> str:
    """Return the tag of a source: loaded, patients, model or pushed."""
    kind = source.get("kind", "") if isinstance(source, dict) else getattr(source, "kind", "")
    kinds = {"": "loaded", "omop": "patients", "fhir": "patients", "model": "model"}
    return kinds.get(str(kind), "pushed")
