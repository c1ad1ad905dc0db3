"""A service that is killed all the time and counts exactly: `tox -e demo-services`.

`counter` is the service, as in `docs/operators.md`; `feeder` sends the words; `__main__` starts both and a Redis
server, kills and stops them and cuts their way to it at random moments, and reads what the service sends.
"""
