"""The broker: everything between a decoded packet and an encoded one. No sockets, no threads, no clock of its own."""
