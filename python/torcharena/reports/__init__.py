"""Who used what, when: phases, categories, modules, reports, timelines, snapshots."""
