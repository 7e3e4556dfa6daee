"""Resource quantities such as ``1Gi`` and ``500m``, after ``k8s.io/apimachinery/pkg/api/resource``."""

import re
from fractions import Fraction

_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))"
    r"(?:(?P<binary>[KMGTPE]i)|(?P<decimal>[numkMGTPE])|[eE](?P<exponent>[+-]?[0-9]{1,3}))?"
)
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL = {"n": -3, "u": -2, "m": -1, "": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_BY_POWER = {power: suffix for suffix, power in _DECIMAL.items()}
_LEAST_POWER, _GREATEST_POWER = min(_BY_POWER), max(_BY_POWER)
PATTERN_PROBLEM = (
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)


def parse_quantity(text: object) -> Fraction | None:
    """The value of a quantity; None when it is none. Whole numbers may come without quotes."""
    found = _match(text)
    if found is None:
        return None
    value = Fraction(found["number"].rstrip("."))
    if found["binary"]:
        return Fraction(value * 1024 ** _BINARY.index(found["binary"]))
    if found["exponent"]:
        return value * Fraction(10) ** int(found["exponent"])
    return value * Fraction(1000) ** _DECIMAL[found["decimal"] or ""]


def canonical_quantity(text: object) -> str | None:
    """The quantity as Kubernetes writes it: the largest suffix that leaves a whole number.

    None when it is not a quantity. One with an exponent keeps it; less than a billionth is rounded up.
    """
    value, found = parse_quantity(text), _match(text)
    if value is None or found is None:
        return None
    if found["binary"] and abs(value) >= 1024 and value.denominator == 1:
        return _with_binary_suffix(int(value))
    power, number = _decimal_parts(value)
    if found["exponent"] and power:
        return f"{number}e{3 * power}"
    return f"{number}{_BY_POWER[power]}"


def _match(text: object) -> re.Match[str] | None:
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        return None
    return _QUANTITY.fullmatch(str(text))


def _with_binary_suffix(value: int) -> str:
    power = 0
    while value % 1024 == 0 and power < len(_BINARY) - 1:
        value //= 1024
        power += 1
    return f"{value}{_BINARY[power]}"


def _decimal_parts(value: Fraction) -> tuple[int, int]:
    """The greatest power of a thousand, and the whole number that it multiplies."""
    for power in range(_GREATEST_POWER, _LEAST_POWER - 1, -1):
        number = value / Fraction(1000) ** power
        if number.denominator == 1 and (number or power == 0):
            return power, int(number)
    smallest = value / Fraction(1000) ** _LEAST_POWER
    return _LEAST_POWER, -(-smallest.numerator // smallest.denominator)
