"""Forms of layers with experts: how tokens are routed, and networks one by one or in stacks."""
