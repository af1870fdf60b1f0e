"""The one error that bad input raises."""


class InputError(ValueError):
    """Input that kvreclaim cannot use; its message is one line that says what to pass instead.

    The command line prints the message and ends with exit status 2.
    """
