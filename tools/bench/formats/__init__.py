"""Speed of weight formats beside one another."""
