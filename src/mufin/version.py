"""The version of the library, known even where it runs from its source without being installed."""

VERSION = "0.1.0"
