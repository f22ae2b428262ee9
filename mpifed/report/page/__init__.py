"""One self-contained HTML page of a report: no network, no library."""
