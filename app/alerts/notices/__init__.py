"""Notices of the pulse as rules and messages see them."""
