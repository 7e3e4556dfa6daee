"""How a patch or an applied configuration changes an object, and who owns which of its fields then.

Functions over JSON values. Whether the change is allowed, and what it means for the kind, does not belong
here.
"""
