"""Surrogates of the majorisation-minimisation problems that FedMM solves."""
