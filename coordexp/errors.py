"""The errors a user can cause: one root, one leaf for each kind of input."""


class CoordExpError(ValueError):
    """Input coordexp cannot work with; the message says what, where and what was expected."""


class ConfigError(CoordExpError):
    """A configuration file, key or value is wrong."""


class TokenizerError(CoordExpError):
    """A tokenizer lacks a token, or gives one another id than expected."""


class DataError(CoordExpError):
    """An annotation file, record, box or image is wrong."""


class ParseError(CoordExpError):
    """A token sequence does not follow the object grammar."""


class CheckpointError(CoordExpError):
    """A checkpoint is missing, damaged or of another model."""


class ComparisonError(CoordExpError):
    """Runs differ in more than the declared factor."""


class TrackingError(CoordExpError):
    """The tracking server or its database cannot be used."""


class ResourceError(CoordExpError):
    """The machine or the cluster lacks what a run asks for (CPUs, GPUs, disk)."""


class TrainingError(CoordExpError):
    """Training went wrong in a way that more steps cannot mend (a non-finite loss)."""


class DivergedError(TrainingError):
    """Loss or gradients stopped being finite; every rank raises it at the same step."""
