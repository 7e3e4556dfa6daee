"""Access to the Kubernetes API: client, watches, leases, events, and objects to and from values.

Only this package uses the objects of the API: ``reading`` turns them into values of the model, ``building``
builds them from values. ``errors`` translates foreign errors. Other packages decide about objects.
"""
