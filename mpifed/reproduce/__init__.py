"""``python -m mpifed.reproduce``: the tables and figures of the papers, run and written as
pages.
"""
