"""Access to the Kubernetes API: client, watches, leases, events, and objects to and from values.

Maps from the API end here: ``reading`` turns objects into values of the model, ``building`` makes objects
from values. Foreign errors are translated in ``errors``. What to do about an object is decided elsewhere.
"""
