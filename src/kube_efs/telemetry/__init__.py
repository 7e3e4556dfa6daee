"""Logs, metrics, traces, and the health endpoint of the processes.

Names, labels and help texts of all metrics are here. The values are set where things happen, and events of
Kubernetes belong to ``kube``.
"""
