"""How a patch or an applied configuration changes an object, and who owns which of its fields then."""
