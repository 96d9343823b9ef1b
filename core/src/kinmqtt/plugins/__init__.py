"""Plugins: found by entry point, chosen by the settings, and held behind a typed face over pluggy."""
