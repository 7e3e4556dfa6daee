"""Access to the Kubernetes API: client, watches, leases, events, and objects to and from values.

``reading`` turns objects of the API into values of the model, ``building`` builds them from values. Other
packages watch and read kinds with these clients, and decide about objects. ``errors`` translates foreign
errors.
"""
