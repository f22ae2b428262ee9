"""What ``--dry-run`` says of gossip."""

from __future__ import annotations

from mpifed.exchange.routes import Route


def gossip_lines(route: Route, period: int | None, payload: int, values_kept: int) -> list[str]:
    """Return lines on a round of gossip.

    Parameters
    ----------
    route : Route
        What ranks send each other in round 1.
    period : int or None
        The period of the schedule.
    payload : int
        The bytes of a message.
    values_kept : int
        Values of each client that are kept for others; 0 where clients wait for each other.
    """
    matrix, traffic = route.matrix, route.traffic
    transport, why = route.chosen
    per_row, per_sum = traffic.bytes_a_number()
    gathered = transport == "collective"
    rows = traffic.gathered_rows if gathered else traffic.row_numbers
    moved = rows * payload
    moved += 0 if gathered else traffic.sum_numbers * payload // per_row * per_sum
    lines = [
        f"exchange    gossip; {matrix.n} nodes, {len(matrix.edges)} edges in round 1, "
        f"{'no period' if period is None else f'period {period}'}, W {matrix.sha256[:12]}"
    ]
    if values_kept:
        return [
            *lines,
            f"            clients do not wait; {values_kept} values of each are kept, "
            f"{values_kept * matrix.n * payload:,} bytes in all",
        ]
    return [
        *lines,
        f"            over its edges the federation sends {route.messages * payload:,} bytes",
        f"            between ranks by {transport}: {why}",
        f"            MPI moves {moved:,} bytes a round: {rows} rows"
        + (f", {traffic.sum_numbers} sums" if traffic.sum_numbers and not gathered else ""),
    ]
