"""How much a process may hold, and whose word that is: its own, the environment's, the
administrator's; alone or with others on the GPU."""
