"""What the tests of redis_session share: Redis servers in processes, and stores over them."""
