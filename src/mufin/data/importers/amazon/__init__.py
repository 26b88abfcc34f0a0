"""Import Amazon product metadata."""
