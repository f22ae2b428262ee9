"""Studies of mixing matrices and schedules: consensus rates, descriptions, rankings and plots."""
