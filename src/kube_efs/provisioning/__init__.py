"""From a claim to a volume and back: the engine, and one module for each kind of volume.

The engine decides what is to be done and in which order; a backend knows how its kind of volume is made
and removed. Watching and publishing results belong to ``controllers``.
"""
