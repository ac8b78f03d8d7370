"""Measuring layers and models beside their peers."""
