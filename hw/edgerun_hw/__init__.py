"""Drives, simulates, builds and deploys the table-lookup overlay for FPGA boards."""
