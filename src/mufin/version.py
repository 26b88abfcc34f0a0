"""The version of the library, available even when running from source."""

VERSION = "0.1.0"
