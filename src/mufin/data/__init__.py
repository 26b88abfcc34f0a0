"""What comes in: items, catalogues, pictures, file formats."""
