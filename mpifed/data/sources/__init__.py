"""The data sets that mpifed has, each family in a file of its own."""
