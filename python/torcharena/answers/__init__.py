"""What torch is told where a plug-in allocator has no answer of its own.

memory       torch.cuda.memory and torch.accelerator; `install` puts all of this in place
stats        the core's counters, as torch.cuda.memory_stats has them
snapshot     the core's blocks, pages and events, as torch.cuda.memory._snapshot has them
checkpoints  a CUDA graph pool's state, for torch.compile
objects      torch.cuda.MemPool; tensors shared between processes
profiler     memory events for torch.profiler"""
