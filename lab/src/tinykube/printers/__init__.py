"""Server-side tables: the columns that ``kubectl get`` shows of the built-in kinds."""
