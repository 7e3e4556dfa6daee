"""How many objects a page of a list has."""

from typing import Final

# That of client-go's reflectors. A page with too many bytes gets fewer objects (``decodable``).
PAGE_SIZE: Final = 500
