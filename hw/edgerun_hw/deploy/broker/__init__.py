"""The privileged helper: the only part of the deployment tool that runs as root on a board.

It reads requests from its standard input and answers on its standard output (``protocol.py``). The
requests are a fixed list without paths, addresses or commands in them; what is written where
follows from a manifest that it has checked itself. It starts no shell. The folder is packed into
one file (``deploy/broker_file.py``) that needs nothing but Python 3.10 and its standard library, so
modules here import only the standard library and one another.
"""

PROTOCOL = 4
"""Changes whenever a request or an answer changes."""
