"""``/v1/responses``: OpenAI's newer form of chats, in items; nothing is stored between requests."""
