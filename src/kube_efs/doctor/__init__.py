"""What is wrong with a cluster, a node or a claim, and what to do about it.

``gathering`` asks the Kubernetes API, AWS and this machine, and changes nothing; what it finds are the plain
values of ``facts``. ``checks`` are pure functions from them to findings, one module for each topic. The
doctor repairs nothing. How an installation should look comes from the command line, which knows the
manifests.
"""
