"""Items, catalogues, images and their files."""
