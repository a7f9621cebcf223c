"""The devices that ``--device`` can name, and how they are reached."""
