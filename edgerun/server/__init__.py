"""A server that answers as the APIs of OpenAI and Anthropic do, for programs that speak them."""
