"""Networks of links among nodes: the time of a round, overlays and asynchronous gossip on them."""
