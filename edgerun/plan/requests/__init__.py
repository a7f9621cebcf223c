"""Plans of whole requests, by what devices were measured to do: prompts here, replies there."""
