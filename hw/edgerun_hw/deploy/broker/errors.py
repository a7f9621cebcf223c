"""What the helper says when it does not do something.

BrokerError
├── ProtocolError   the message is malformed or comes at the wrong time; the session ends
├── RefusalError         a well-formed request for something that must not be done
├── BusyError            another deployment holds the lock
└── FailureError          the machine failed: disk, FPGA manager, registers
"""

from __future__ import annotations


class BrokerError(Exception):
    """Base; ``code`` is what the other side switches on, the text is for people."""

    code = "failed"


class ProtocolError(BrokerError):
    """The message cannot be a request."""

    code = "protocol"


class RefusalError(BrokerError):
    """The request asks for something that must not be done; nothing was changed."""

    code = "refused"


class BusyError(BrokerError):
    """Another deployment is running."""

    code = "busy"


class FailureError(BrokerError):
    """Doing it failed."""

    code = "failed"
