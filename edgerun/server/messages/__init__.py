"""``/v1/messages``: conversations as Anthropic's API has them."""
