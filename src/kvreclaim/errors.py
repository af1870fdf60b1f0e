"""The one error that bad input raises."""

_BREAKS = {
    ord(char): char.encode("unicode_escape").decode() for char in "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
}
"""What ends a line, as `str.splitlines` has it, and how it is written within one."""


class InputError(ValueError):
    """Input that kvreclaim cannot use; its message is one line that says what to pass instead.

    Names and values that came from outside stand in it, so whatever would end a line is escaped. The command
    line prints the message and ends with exit status 2.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message.translate(_BREAKS))
