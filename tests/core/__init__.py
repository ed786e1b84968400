"""What a change must not break: every combination of answers, and the guarantees that forked ranks can show."""
