"""When to checkpoint, how often under pressure, and what to keep in memory: one small file per policy."""

from safekeeper.policy.calibrate import Calibrate
from safekeeper.policy.capture import Capture, CaptureView, Changed, Choice, KnowsOperators, PasteTurns, PasteView, What
from safekeeper.policy.eventual import Eventual
from safekeeper.policy.every import Every, Trigger
from safekeeper.policy.idle import IdleCapture
from safekeeper.policy.sweep import EveryWhole, Sweep, Together
from safekeeper.policy.ttl import Ttl

__all__ = [
    "Calibrate",
    "Capture",
    "CaptureView",
    "Changed",
    "Choice",
    "Eventual",
    "Every",
    "EveryWhole",
    "IdleCapture",
    "KnowsOperators",
    "PasteTurns",
    "PasteView",
    "Sweep",
    "Together",
    "Trigger",
    "Ttl",
    "What",
]
