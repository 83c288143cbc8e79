"""``fedneighbors keys``: signing keys and rosters of masked sums."""

from pathlib import Path
from typing import Annotated

import typer

from fedneighbors.cli._console import echo

keys = typer.Typer(no_args_is_help=True, help="Create keys and rosters for masked sums.")


@keys.command("new", epilog="Example: [bold]fedneighbors keys new --party north --out north.pem[/]")
def new(
    party: Annotated[str, typer.Option(help="Name of the party in the federation.")],
    out: Annotated[
        Path, typer.Option(help="File of the private key; the public key gets the ending .pub.")
    ],
) -> None:
    """Create the key pair of a party.

    The private key stays with the party; the public key is sent to the others.
    """
    from fedneighbors.records import replace_file
    from fedneighbors.secure_sum._keys import Identity, Roster

    public_path = out.with_suffix(".pub")
    for path in (out, public_path):
        if path.exists():
            raise ValueError(
                f"{path} exists; overwriting it would destroy a key, so choose another file"
            )
    identity = Identity.new()
    roster = Roster({party: identity.public})
    out.parent.mkdir(parents=True, exist_ok=True)
    identity.write(out)
    replace_file(public_path, roster.to_json().encode("utf-8"))
    echo(f"private key {out} (keep it here)", "green")
    echo(f"public key  {public_path} (give it to the other parties)", "green")


@keys.command(
    epilog="Example: [bold]fedneighbors keys roster north.pub east.pub --out roster.json[/]"
)
def roster(
    public: Annotated[list[Path], typer.Argument(help="Public key files of all parties.")],
    out: Annotated[Path, typer.Option(help="Roster file (JSON).")] = Path("roster.json"),
) -> None:
    """Join the public key files of all parties into one roster.

    The parties and the coordinator use the same roster.
    """
    from fedneighbors.records import replace_file
    from fedneighbors.secure_sum._keys import Roster

    all_keys: dict[str, bytes] = {}
    for path in public:
        for name, key in Roster.read(path).keys.items():
            if all_keys.get(name, key) != key:
                raise ValueError(
                    f"two different keys are given for {name!r}; ask the party for the right one"
                )
            all_keys[name] = key
    replace_file(out, Roster(all_keys).to_json().encode("utf-8"))
    for name in sorted(all_keys):
        echo(f"{name}  {all_keys[name].hex()}")
    echo(
        f"roster {out}: {len(all_keys)} parties; compare the keys with each party by telephone",
        "green",
    )
