"""What an eviction costs: the next tokens under a keep mask (`figures`), and needles found (`retrieval`)."""

from kvreclaim.capture.quality.figures import Continuation, Quality, quality

__all__ = ["Continuation", "Quality", "quality"]
