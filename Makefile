# Two commands are the front door: `make run` and `make test`.
