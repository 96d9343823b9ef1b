"""What carries out each packet that a client sends."""
