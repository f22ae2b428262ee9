"""FedMM: majorise-minimise by aggregation of surrogates (Dieuleveut et al. 2025)."""
