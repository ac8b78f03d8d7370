"""Weights in and out: files, and the names that other libraries give them."""
