"""Other engines measured on the same model files as ours, by turns in one run. Not part of the package."""
