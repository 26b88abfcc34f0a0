"""Downloading the pictures of a catalogue, politely and without trusting anybody."""
