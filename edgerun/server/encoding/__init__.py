"""Prompts become ids, and forms of replies become grammars, in threads beside the event loop."""
