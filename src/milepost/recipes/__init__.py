"""Recipes: complete, readable programs that fine-tune language models, and their configurations."""
