"""The controller's status page: what ``kube-efs status`` shows, for a browser.

Only reads, and shows only what a report has. What is shown goes through ``html``, which escapes it.
"""
