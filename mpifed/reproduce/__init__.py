"""``python -m mpifed.reproduce``: the papers' tables and figures, whose studies and code are in
``experiments``.
"""
