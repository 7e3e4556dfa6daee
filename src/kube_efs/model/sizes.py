"""Sizes in readable units."""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def format_size(size: int) -> str:
    """The size in the largest unit that gives at least 1, such as ``1.5 GiB``."""
    value, unit = float(size), 0
    # What would be rounded to 1024.0 is 1.0 of the next unit.
    while value >= 1023.95 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {_UNITS[unit]}" if unit else f"{size} B"
