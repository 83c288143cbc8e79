"""The exceptions that fedneighbors raises.

Bad arguments raise ``ValueError`` or ``TypeError``, as usual in scientific Python. Every other
error derives from :class:`FedneighborsError`::

    FedneighborsError
    ├── DataError                 a file or table is unusable (also a ValueError)
    │   └── MissingDataError      a data set or its folder does not exist
    ├── SourceError               a provider's database failed, or broke the contract of sources
    ├── ModelFileError            a saved model is truncated, altered, foreign or of another version
    ├── RecordError               a run record cannot be read
    ├── FolderInUse               another run writes to an output folder
    ├── PartitionError            no partition with the requested properties was found
    ├── MissingExtraError         an optional dependency is not installed (also an ImportError)
    ├── MissingDeviceError        a graphics card was requested but none is usable (also ValueError)
    ├── RebuildNeeded             a compressed memory needs its original rows for the operation
    ├── PrivacyError              a privacy budget or its ledger prevents the operation
    │   ├── BudgetExceeded        a charge exceeds the remaining budget; nothing was charged
    │   └── LedgerError           a ledger is locked, truncated, full or of another version
    └── FederationError           a federated run could not be completed
        ├── WireError             a frame is malformed, too large or unexpected
        ├── SchemaMismatch        a party's table differs from the others'; names party and column
        ├── PartyMissing          parties did not answer; names them
        ├── PartyRefused          a party answered with an error code; names both
        ├── PortInUse             a port that a server needs is in use by another program
        ├── AggregationError      a masked sum could not be formed; may name a party
        └── ProtocolError         a party or the coordinator violated the protocol
"""

import copyreg
from collections.abc import Mapping
from typing import Any


class FedneighborsError(Exception):
    """Base class of all errors except bad arguments."""

    def __reduce__(self) -> tuple[Any, ...]:
        # By default Exception unpickles by passing only the message to the constructor.
        return copyreg.__newobj__, (type(self), *self.args), dict(self.__dict__)  # type: ignore[attr-defined]


class DataError(FedneighborsError, ValueError):
    """A file or table is unusable."""


class MissingDataError(DataError):
    """A data set or its folder does not exist."""


class SourceError(FedneighborsError):
    """A database with the objects of a provider failed, or broke the contract of sources."""


class ModelFileError(FedneighborsError):
    """A saved model is truncated, altered, foreign or of another version."""


class RecordError(FedneighborsError):
    """A run record cannot be read."""


class FolderInUse(FedneighborsError):  # noqa: N818 - the name states the error
    """Another run writes to an output folder.

    Parameters
    ----------
    folder : str
        The folder.
    """

    def __init__(self, folder: str) -> None:
        super().__init__(f"another run writes to {folder}; let it finish, or choose another folder")
        self.folder = folder


class PartitionError(FedneighborsError):
    """No partition with the requested properties was found within the allowed attempts."""


class MissingExtraError(FedneighborsError, ImportError):
    """An optional dependency is not installed.

    Parameters
    ----------
    package : str
        Name of the package that could not be imported.
    extra : str
        Extra of fedneighbors that installs it.
    """

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"{package!r} is not installed; install it with: pip install 'fedneighbors[{extra}]'"
        )
        self.package = package
        self.extra = extra


class MissingDeviceError(FedneighborsError, ValueError):
    """A graphics card was requested but none is usable."""


class RebuildNeeded(FedneighborsError):  # noqa: N818 - the name states the error
    """A compressed memory needs its original rows for the requested operation."""


class PrivacyError(FedneighborsError):
    """A privacy budget or its ledger prevents the operation."""


class BudgetExceeded(PrivacyError):  # noqa: N818 - the name states the error
    """A charge exceeds the remaining budget; nothing was charged.

    Parameters
    ----------
    dataset, user : str
        Data set and user of the budget.
    requested, left : str
        The charge and the remaining budget, formatted for people.
    """

    def __init__(self, dataset: str, user: str, requested: str, left: str) -> None:
        super().__init__(
            f"the budget of data set {dataset!r} for user {user!r} does not allow {requested}; "
            f"left: {left}. Nothing was charged or released; raise the budget or ask for less"
        )
        self.dataset = dataset
        self.user = user
        self.requested = requested
        self.left = left


class LedgerError(PrivacyError):
    """A ledger is locked, read-only, truncated, on a full disk or of another version."""


class FederationError(FedneighborsError):
    """A federated run could not be completed."""


class WireError(FederationError):
    """A frame is malformed, too large or unexpected."""


class ProtocolError(FederationError):
    """A party or the coordinator violated the protocol."""


class SchemaMismatch(FederationError):  # noqa: N818 - the name states the error
    """A party's table does not match the others'.

    Parameters
    ----------
    party : str
        The party that differs.
    column : str
        The column in question.
    expected, found : str
        The federation's value and the one that the party announced.
    """

    def __init__(self, party: str, column: str, expected: str, found: str) -> None:
        super().__init__(
            f"party {party!r}, column {column!r}: expected {expected}, found {found}; "
            "bring the party's table in line with the others before training"
        )
        self.party = party
        self.column = column
        self.expected = expected
        self.found = found


class PartyMissing(FederationError):  # noqa: N818 - the name states the error
    """Parties did not answer.

    Parameters
    ----------
    missing : mapping of str to str
        Reason that the runtime gave, by party name.
    during : str
        Name of the request or step.
    """

    def __init__(self, missing: Mapping[str, str], during: str) -> None:
        who = ", ".join(f"{name!r} ({reason})" for name, reason in sorted(missing.items()))
        super().__init__(
            f"no reply to {during} from party {who}; no result was written. "
            "Start the party again, or run without it, then repeat the run"
        )
        self.missing = dict(missing)
        self.during = during


class PartyRefused(FederationError):  # noqa: N818 - the name states the error
    """A party answered with an error code instead of a reply.

    Parameters
    ----------
    party : str
        The party that refused.
    code : str
        Its error code; never a value or a row number.
    detail : str
        A column name or another public word; empty if none applies.
    """

    def __init__(self, party: str, code: str, detail: str = "") -> None:
        where = f" ({detail})" if detail else ""
        super().__init__(f"party {party!r} refused: {code}{where}")
        self.party = party
        self.code = code
        self.detail = detail


class PortInUse(FederationError):  # noqa: N818 - the name states the error
    """A port that a server needs is in use by another program.

    Parameters
    ----------
    host : str
        Address of this machine.
    port : int
        The port.
    """

    def __init__(self, host: str, port: int) -> None:
        super().__init__(
            f"port {port} of {host} is in use by another program; stop that program (ss -ltnp "
            "names it) or choose another port"
        )
        self.host = host
        self.port = port


class AggregationError(FederationError):
    """A masked sum could not be formed.

    Parameters
    ----------
    reason : str
        The expectation, the finding and the remedy.
    party : str, optional
        The party at fault, if there is one.
    """

    def __init__(self, reason: str, party: str | None = None) -> None:
        super().__init__(reason if party is None else f"party {party!r}: {reason}")
        self.reason = reason
        self.party = party
