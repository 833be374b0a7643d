"""A process that changes no file of the machine and connects to no other one."""
