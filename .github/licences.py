"""Fail if an installed package has a licence that is not permissive.

usage: python .github/licences.py PYTHON
"""

import json
import subprocess
import sys

PERMISSIVE = ("MIT", "BSD", "Apache", "ISC", "PSF", "Python Software", "Unlicense", "Zlib", "0BSD")
PERMISSIVE += ("HPND", "MPL", "Mozilla", "CC0", "Public Domain", "Historical Permission")
# Licence texts in place of names, read by hand.
READ = {
    "atheris": "Apache-2.0; its package names no licence",
    "matplotlib": "PSF-based",
    "pycryptodome": "BSD and public domain",
    "pylint": "GPL-2.0; run as a tool by the tests, not distributed",
    "astroid": "LGPL-2.1; part of pylint",
    "psycopg": "LGPL-3.0; imported unmodified, optional, not distributed",
    "psycopg-binary": "LGPL-3.0; part of psycopg",
}


def main(python: str) -> int:
    """Print the packages without a permissive licence; return their number."""
    command = ["pip-licenses", "--python", python, "--format", "json", "--from", "mixed"]
    packages = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    failed = [
        package
        for package in packages
        if package["Name"].lower() not in READ
        and not any(word.lower() in package["License"].lower() for word in PERMISSIVE)
    ]
    for package in failed:
        print(package["Name"], package["Version"], package["License"][:80])
    print(f"{len(packages)} packages, {len(failed)} without a permissive licence")
    return len(failed)


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1]), 1))
