"""The KV cache: block pool, block tables and columns of rows, the store itself, snapshots of a row, the prefix port."""
