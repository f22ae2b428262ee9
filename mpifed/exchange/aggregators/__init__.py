"""More aggregators, those of ByzFL (Gonzalez et al. 2025)."""
