"""``python -m mpifed.reproduce``: the tables and figures of the papers, run and written as pages.

``study`` has the shape of a table, ``fedem``, ``flix`` and ``fedmm`` what each paper shows;
``running`` runs what is missing, ``tuning`` chooses learning rates on validation data, and ``page``
writes what came out beside what was published.
"""
