"""The engine: prefill, decode, sample; sessions that keep their cache between turns."""
