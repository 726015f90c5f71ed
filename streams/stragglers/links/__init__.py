"""Transfers of a job over the network: how fast each pair of ranks exchanged data, and which link is slow."""
