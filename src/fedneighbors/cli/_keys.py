"""``fedneighbors keys``: signing keys and rosters of masked sums."""

from pathlib import Path
from typing import Annotated

import typer

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
    from fedneighbors.cli._console import say
    from fedneighbors.records import replace_file
    from fedneighbors.secure_sum._keys import Identity, Roster

    public = out.with_suffix(".pub")
    for path in (out, public):
        if path.exists():
            raise ValueError(
                f"{path} exists; overwriting a key would destroy it, name another file"
            )
    identity = Identity.new()
    roster = Roster({party: identity.public})
    out.parent.mkdir(parents=True, exist_ok=True)
    identity.write(out)
    replace_file(public, roster.to_json().encode("utf-8"))
    say(f"private key {out} (keep it here)", "green")
    say(f"public key  {public} (give it to the other parties)", "green")


@keys.command(
    epilog="Example: [bold]fedneighbors keys roster north.pub east.pub --out roster.json[/]"
)
def roster(
    public: Annotated[list[Path], typer.Argument(help="Public key files of all parties.")],
    out: Annotated[Path, typer.Option(help="Roster file (JSON).")] = Path("roster.json"),
) -> None:
    """Join public keys into the roster of all parties and the coordinator."""
    from fedneighbors.cli._console import say
    from fedneighbors.records import replace_file
    from fedneighbors.secure_sum._keys import Roster

    joined: dict[str, bytes] = {}
    for path in public:
        for name, key in Roster.read(path).keys.items():
            if joined.get(name, key) != key:
                raise ValueError(
                    f"two different keys are given for {name!r}; ask the party for the right one"
                )
            joined[name] = key
    complete = Roster(joined)
    replace_file(out, complete.to_json().encode("utf-8"))
    for name in sorted(joined):
        say(f"{name}  {joined[name].hex()}")
    say(
        f"roster {out}: {len(joined)} parties; compare the keys with each party by telephone",
        "green",
    )
