"""The custom resource SharedVolume: its values, its limits, and the plan for its claim and volume."""
