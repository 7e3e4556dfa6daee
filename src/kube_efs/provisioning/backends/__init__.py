"""The kinds of volumes: how each is planned, made and removed when the engine asks for it.

A backend decides nothing about other volumes: whether data may go is asked in ``guards``, who may work on a
directory is reserved there. It makes and removes directories by ``workers``, and reads classes and claims by
``model``.
"""
