"""Single rows that try to change how other rows of a file are read."""

NUMBERS = (
    "", " ", "?", "NA", "nan", "NaN", "-nan", "inf", "-inf", "Infinity", "1e308", "1e309", "-1e400",
    "0", "-0", "00", "007", "1_000", "1,5", "1 5", "0x10", "1e", "e1", "+", "-", ".", "5.", ".5",
    "\uff11\uff12", "٣", "²", "½", "∞", "9" * 18, "9" * 30, "9" * 400, "9" * 5000,
    "1" + "0" * 200_000,
    "2024-01-01", "2024-01-01T00:00:00Z",
    "12:30", "True", "false", "None", "null", "NULL", "#N/A",
    "3.0000000000000000000001", "1e-400", "4.9e-324", "1d3", "$5", "5%", "(5)", "--5", "1/3", "1j",
    "age", "sex", "died", "no", "f", "\x00", "5\x00", "\x1a", "\x0b", "\x0c7", "\x1c", "\u2028",
    "\u0085", "\ufeff5", "\u202e5", "😀", "=1+1", "@SUM(1)", "<script>", "{", "}", "[1]",
    '{"a": 1}',
    "%", "% 5", "@data", "'", "''", "'5'", "\\", "\\n", "\\'", "`", "#", "//", ";", "\t", "|",
)  # fmt: skip
"""Cells of a numeric column."""

WORDS = (
    "", "F", " f", "f ", "ff", "missing", "f,m", "f;m", "f\tm", "f|m", "é", "e\u0301", "ﬀ",
    "\u017f",
    "0", "1", "1.0", "nan", "None", "sex=f", "a" * 1000, "a" * 140_000, "\x00f", "f\x00", "\ufeff",
)  # fmt: skip
"""Cells of a categorical column."""

LABELS = (
    "", "maybe", "NO", " yes", "yes ", "0", "1", "1.0", "True", "nan", "None", "2024-01-01",
    "no,yes", "y" * 1000, "died", "\x00", "ja", "\u22121", "1e400", "yes\x00",
)  # fmt: skip
"""Cells of the label column."""

LINES = (
    b'"', b'"\n', b'"unclosed,f,no', b'50,"f,no', b'50,f,"no', b'""""', b'"""', b'50,"f"x,no',
    b"50,f", b"50", b",", b",,", b",,,", b",,,,,,,,", b"50,f,no,extra", b"50;f;no", b"50\tf\tno",
    b"\r", b"50,f\r,no", b"50\r,f,no", b"\x00", b"\x00,\x00,\x00", b"\xff,\xfe,\xfd", b"\xff\xfe",
    b"5\x000\x00,\x00f\x00", b"\xef\xbb\xbf50,f,no", b"\xc3,f,no", b"50,\xe9,no", b"50,f,\xe9",
    b"\xed\xa0\x80,f,no", b"\xf4\x90\x80\x80,f,no", b"\x80" * 100, b" ", b"\t", b"\x1a", b"\x0c",
    b"age,sex,died", b"# comment", b"% comment", b"@data", b"//", b"--", b"\\", b"\\N,\\N,\\N",
    b"{0 50, 2 no}", b"{}", b'{"age": 50}', b'{"age": 50, "sex": "f", "died": "no"}', b"[]",
    b"null",
    b'{"age": {"age": 1}, "sex": [], "died": null}', b'{"age": 1e400, "sex": 1, "died": "no"}',
    b'{"age": NaN, "sex": "f", "died": "no"}', b"[" * 100_000, b'{"a":' * 100_000, b"x" * 2_000_000,
    b"5" * 1_048_575, b"5" * 1_048_576, b"5" * 1_048_577, b"," * 2_000_000, b'"' * 200_001,
    b"'", b"'50', 'f', 'no'", b"'50, f, no", b"50, 'f, no", b'50, "f\', no', b"50, f\\, no",
    b"?,?,?",
    b"\x1f\x8b\x08\x00", b"PAR1", b"PK\x03\x04", b"sep=;", b"<?xml version='1.0'?>",
)  # fmt: skip
"""Bytes of a line; those with a newline character are two lines."""


def delimited_rows():
    """Return hostile lines of a file with the columns age, sex and died."""
    numbers = [f'"{cell}",f,no'.encode() for cell in NUMBERS if '"' not in cell]
    plain = [f"{cell},f,no".encode() for cell in NUMBERS if "," not in cell]
    words = [f'50,"{cell}",yes'.encode() for cell in WORDS]
    labels = [f'50,m,"{cell}"'.encode() for cell in LABELS]
    return [*numbers, *plain, *words, *labels, *LINES]
