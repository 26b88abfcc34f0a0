"""Importers: read other people's files and build catalogues from them."""
