"""Resource quantities such as ``1Gi`` and ``500m``, as in ``k8s.io/apimachinery/pkg/api/resource``."""

import re
from fractions import Fraction

_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))"
    r"(?:(?P<binary>[KMGTPE]i)|(?P<decimal>[numkMGTPE])|[eE](?P<exponent>[+-]?[0-9]{1,3}))?"
)
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL = {"n": -3, "u": -2, "m": -1, "": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}


def parse_quantity(text: object) -> Fraction | None:
    """The value of a quantity; None for an invalid one. Integers may be without quotes."""
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        return None
    found = _QUANTITY.fullmatch(str(text))
    if found is None:
        return None
    value = Fraction(found["number"].rstrip("."))
    if found["binary"]:
        return Fraction(value * 1024 ** _BINARY.index(found["binary"]))
    if found["exponent"]:
        return value * Fraction(10) ** int(found["exponent"])
    return value * Fraction(1000) ** _DECIMAL[found["decimal"] or ""]
