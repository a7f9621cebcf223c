"""Kimi K2: DeepSeek V3 by another name, with one group of more experts."""

from edgerun_export.architectures.deepseek.deepseek_v3 import describe

ARCHITECTURE = describe
