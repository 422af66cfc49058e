"""From a checkpoint to what a network is for: scores, predictions, and files that other programs run.

scoring     evaluate(...)            on any number of ranks, none of which has the network
network     CalibratedNetwork        the whole network in one process
prediction  predict(...)             examples in, CSV or JSON lines out
generation  continuation(...)        a prompt in, the tokens that follow it out, and their text
layers      plain_layers(...)        the network as plain PyTorch has it
own_layers  own_state(...)           a network of one's own, under the names of its own state
program     traced(...)              a network as torch.export has it, without any class
code        runnable(...)            a network of one's own with its code, which nobody runs without being told to
extraction  extract(...)             a subnet as a network of its own
export      export(...)              safetensors, torch, onnx, npz
"""
