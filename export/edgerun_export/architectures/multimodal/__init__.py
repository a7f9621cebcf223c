"""Text models of several families, beside parts for pictures: one file per ``model_type``."""
