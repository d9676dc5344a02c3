"""What adapters to engines share: rounds as messages of a trace, written in the background; defenses in a client."""
