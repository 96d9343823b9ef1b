"""A limiter after Sentinel's model: flow, degrade, system and hot-parameter rules, from settings or a watched file."""
