"""What the RTL costs and how fast it is, estimated without vendor tools."""
