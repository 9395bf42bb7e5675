"""Plain text tables for a terminal."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def text_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, left: Collection[int] = (0,), indent: str = ""
) -> str:
    """Columns of equal width under their names; those whose index is in `left` are flush left."""
    lines = [list(columns), *[list(row) for row in rows]]
    widths = [max(len(line[k]) for line in lines) for k in range(len(columns))]
    return "\n".join(
        indent
        + "  ".join(
            cell.ljust(width) if k in left else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def shortened(text: str, width: int) -> str:
    """`text` in at most `width` characters."""
    return text if len(text) <= width else text[: width - 1].rstrip() + "…"
