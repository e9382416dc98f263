"""Serving looped models on engines that were made for it."""
