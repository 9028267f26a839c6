"""How is each framework used? A module each: loops as users write them, and the cures that refusals name."""
