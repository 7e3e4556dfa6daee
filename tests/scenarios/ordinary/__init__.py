"""Quick scenarios, which ``make test`` runs; they share one cluster and kill nothing."""
