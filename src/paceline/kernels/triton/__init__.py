"""Device kernels in Triton and their launches. Only modules of this package that hold kernels import triton itself.

All sums run in an order fixed by the shapes of the weights and by absolute positions, never by how many rows share a
launch: a row's results are the same bits in any company.
"""
