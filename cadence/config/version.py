"""The version of Cadence, in one place: the package, the shell and the build read it here."""

__version__ = "0.1.0"
