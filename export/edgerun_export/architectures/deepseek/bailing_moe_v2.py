"""Ling 2.0 and Ring 2.0 by the name that their own configuration class has."""

from edgerun_export.architectures.deepseek.bailing_moe import describe

ARCHITECTURE = describe
