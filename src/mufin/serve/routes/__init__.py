"""What each address of the service answers."""
