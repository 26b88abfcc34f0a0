"""The trained model: its labels, its predictions and its folder."""
