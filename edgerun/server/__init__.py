"""A server that answers as OpenAI's API does, for programs that speak it."""
