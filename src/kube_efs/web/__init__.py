"""The controller's status page: the report of ``kube-efs status``, for a browser.

It only reads, and shows only what a report contains: what a cluster looks like belongs to ``report``.
``html`` escapes all text.
"""
