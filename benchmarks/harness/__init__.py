"""What every measurement stands on: who is measured, what runs, the processes, the files of
results.

    contenders   who is measured                    catalogue   the programs and loops, by name
    building     the C that is measured             machine     where it ran
    runs         children, and what they say        program     such a child
    turns        children that go in lockstep       comparing   statistics
    store        the file of results                progress    how far it is"""
