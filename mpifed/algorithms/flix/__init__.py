"""FLIX: mixtures of local optima and a global model (Gasanov et al. 2021).

``flix``, ``dcgd`` and ``diana`` are Algorithms 1, 2 and 3 of the paper. They and ``scafflix`` are
``descent``, each with its own rule for the messages; ``flix_fedavg`` takes the steps of FedAvg. The
objective f~ is in ``objective``; what the theorems predict is in ``theorems``.
"""
