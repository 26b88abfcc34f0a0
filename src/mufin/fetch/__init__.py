"""Download the images of a catalogue, politely and without trusting any host."""
