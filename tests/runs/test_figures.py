import pytest

from fedneighbors.records import Round
from fedneighbors.runs._figures import tabulate_traffic


@pytest.mark.parametrize(
    ("request_", "title"),
    [
        ("CentersRequest", "centers"),
        ("PublicSchemaRequest", "columns and labels"),
        ("PrivateModelRelease", "the model"),
        ("MaskedClassSumsRequest: DealShares", "noised class sums: shares of keys"),
        ("MomentsRequest: Unmask", "sums of columns: unmasked"),
        ("SomethingElse", "SomethingElse"),
    ],
)
def test_rounds_have_readable_names(request_, title):
    record = Round(2, request_, "gather", {"p": 10, "q": 30}, {"p": 6, "q": 6}, 0.1)

    table, _ = tabulate_traffic([record])

    assert table.rows == ((f"3. {title}", "sent", 20.0), (f"3. {title}", "received", 6.0))
