"""Conversations to prompts: templates, and what keeps content apart from control."""
