"""How products of many rows are computed in blocks of them."""
