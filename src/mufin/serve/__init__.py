"""The HTTP service: a trained model behind a few addresses, and the page that shows it."""
