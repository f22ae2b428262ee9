"""Weight rules: mixing matrices of a graph in closed form, and the fastest mixing one."""
