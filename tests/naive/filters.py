"""Filters evaluated for one object at a time."""

from rdkit import Chem


def meets(cells, where):
    """Return whether an object with these cells meets a filter; None is a missing cell."""
    return all(_holds(cells, name, condition) for name, condition in where.items())


def _holds(cells, name, condition):
    if name == "and":
        return all(meets(cells, part) for part in condition)
    if name == "or":
        return any(meets(cells, part) for part in condition)
    if name == "not":
        return not meets(cells, condition)
    if not isinstance(condition, dict):
        condition = {"==": condition}
    return all(_compare(cells[name], symbol, operand) for symbol, operand in condition.items())


def _compare(cell, symbol, operand):
    if symbol == "in":
        return any(_compare(cell, "==", value) for value in operand)
    if cell is None or operand is None:
        return symbol == "==" and cell is None and operand is None
    match symbol:
        case "substructure":
            return Chem.MolFromSmiles(cell).HasSubstructMatch(Chem.MolFromSmarts(operand))
        case "==":
            return cell == operand
        case "<":
            return cell < operand
        case "<=":
            return cell <= operand
        case ">":
            return cell > operand
        case ">=":
            return cell >= operand
    raise ValueError(symbol)
