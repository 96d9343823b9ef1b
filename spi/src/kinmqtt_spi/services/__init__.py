"""The interfaces of the service families, one module each."""
