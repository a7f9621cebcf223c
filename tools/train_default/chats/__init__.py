"""Chats that the default model learns from: stories, requests for them, small talk."""
