"""What the commands do once `mini_infer.cli` has parsed their options."""
