"""File formats of a catalogue: one reader and one writer each, an Arrow table in and out."""
