"""Orders of removals in tests of what carries them out."""


async def stands() -> None:
    """An order that nobody takes back."""
