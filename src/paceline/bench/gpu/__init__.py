"""The decode benchmark for GPUs: random weights of public shapes, acceptance by coin, measured against what the memory
of the device can deliver in the same run."""
