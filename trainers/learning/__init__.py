"""Policy, critic, optimizer and learner, in one process or sharded over several."""
