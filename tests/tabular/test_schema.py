"""Schemas of the parties' tables and their agreement."""

from fedneighbors.tabular._schema import SchemaReply, agree


def test_classes_are_the_union_in_ascending_order():
    schemas = {
        "a": SchemaReply(None, ("number",), "target", "str", ("well",)),
        "b": SchemaReply(None, ("number",), "target", "none", ()),
        "c": SchemaReply(None, ("number",), "target", "str", ("ill", "well")),
    }

    agreed = agree(schemas, reserved=("dead",))

    assert agreed.classes == ("dead", "ill", "well")
    assert agreed.n_features == 1


def test_a_schema_reveals_no_values_or_sizes():
    fields = set(SchemaReply.__dataclass_fields__)

    assert fields == {"feature_names", "kinds", "label_name", "label_kind", "labels"}
