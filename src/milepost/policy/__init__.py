"""Pure decisions: when to save, what to keep, which checkpoint to resume from. No disk, clock, torch or chance."""
