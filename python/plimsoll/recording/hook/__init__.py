"""What `plimsoll run` puts into every Python process of a job; plimsoll_history.py is also what
`plimsoll.record` records with. The program has these files in it, and writes them into the folder
of a run: they are plain Python 3.7, without any other module of this package."""
