"""Scores, predictions and files for other programs, from a checkpoint.

scoring     evaluate(...)            on any number of ranks, none of which has the network
network     CalibratedNetwork        the whole network in one process
prediction  predict(...)             examples in, CSV or JSON lines out
generation  continuation(...)        a prompt in, the tokens that follow it out, and their text
fitting     runnable(...)            the code and the data that go with a checkpoint
extraction  extract(...)             a subnet as a network of its own
layers      chain_state, own_state   the network as layers of plain PyTorch, and their tensors
program     program_of(...)          the network as torch.export has it, without any class
export      export(...)              safetensors, torch, onnx, npz
"""
