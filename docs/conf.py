"""Settings of the Sphinx build (`make docs`)."""

import importlib.metadata

project = "engine"
release = importlib.metadata.version("train-engine")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"

default_role = "code"  # our doc strings write names in single backticks
autodoc_member_order = "bysource"
autodoc_typehints = "description"
