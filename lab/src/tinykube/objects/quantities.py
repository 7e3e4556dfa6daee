"""Resource quantities such as ``1Gi`` and ``500m``, after ``k8s.io/apimachinery/pkg/api/resource``."""

import math
import re
from fractions import Fraction

_QUANTITY = re.compile(
    r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?[0-9]{1,3}))?"
)
# Powers of a thousand and of 1024, from the least to the greatest.
_DECIMAL = {
    suffix: Fraction(1000) ** power for power, suffix in enumerate(("n", "u", "m", "", *"kMGTPE"), -3)
}
_BINARY = {f"{suffix}i": Fraction(1024) ** power for power, suffix in enumerate("KMGTPE", 1)}


def parse_quantity(text: object) -> Fraction | None:
    """The value of a quantity; None when it is none. Whole numbers may come without quotes."""
    parts = _parts(text)
    if parts is None:
        return None
    number, suffix, exponent = parts
    scale = Fraction(10) ** int(exponent) if exponent else (_DECIMAL | _BINARY)[suffix]
    return Fraction(number.rstrip(".")) * scale


def canonical_quantity(text: object) -> str | None:
    """The quantity as Kubernetes writes it: the largest suffix that leaves a whole number.

    None when it is no quantity. One with an exponent keeps it; less than a billionth is rounded up.
    """
    value, parts = parse_quantity(text), _parts(text)
    if value is None or parts is None:
        return None
    _, suffix, exponent = parts
    keeps_binary = suffix in _BINARY and abs(value) >= 1024 and value.denominator == 1
    scales = {"": Fraction(1), **_BINARY} if keeps_binary else _DECIMAL
    value = math.ceil(value / _DECIMAL["n"]) * _DECIMAL["n"]
    suffix = next(
        one for one, scale in reversed(scales.items()) if not value % scale and (value or one == "")
    )
    number = value / scales[suffix]
    if exponent and suffix:
        return f"{number}e{3 * (list(_DECIMAL).index(suffix) - 3)}"
    return f"{number}{suffix}"


def _parts(text: object) -> tuple[str, str, str] | None:
    """Number, suffix and exponent."""
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        return None
    found = _QUANTITY.fullmatch(str(text))
    return found and (found[1], found[2] or "", found[3] or "")
