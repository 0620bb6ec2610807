"""Placeholder until next edit."""


def check_pages(*a):
    pass
