"""Users and topic rights from Mosquitto's ``password_file`` and ``acl_file``, and the command that writes passwords."""
