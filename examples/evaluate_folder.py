"""Evaluate the model in a folder at several temperatures: which one suits it, and what do several attempts reach?

    python examples/evaluate_folder.py                     # the shipped model; about a minute
    python examples/evaluate_folder.py runs/grpo/model     # a folder that training wrote
    python examples/evaluate_folder.py ~/models/Qwen3-0.6B --dialogue think --max-tokens 500

Needs the extra `lm`. The folder is what `save_pretrained` of transformers writes. Prints a table with a row for
each temperature: success per episode, and the fraction of tasks that are solved in at least one of k episodes
(pass@k) and in all of them (pass^k). High temperatures cost single episodes and gain variety.
"""

import argparse

import arboretum

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model", nargs="?", default="sapling", help="folder of a model, or the name of a shipped one")
parser.add_argument("--env", default="TextSokoban-v0", help="environment")
parser.add_argument("--dialogue", default="no_think", help="form of the replies: think, no_think, react, tools, …")
parser.add_argument("--tasks", type=int, default=32, help="number of held-out tasks")
parser.add_argument("--attempts", type=int, default=8, help="episodes per task, at least 2")
parser.add_argument("--max-tokens", type=int, default=32, help="maximum length of a reply")
args = parser.parse_args()

k = args.attempts
print(f"{args.env}, {args.tasks} tasks, {k} episodes each")
print(f"temperature  success                 pass@{k}     pass^{k}")
for temperature in (0.0, 0.5, 1.0):
    result = arboretum.evaluate(
        args.env,
        "direct",
        model=args.model,
        dialogue=args.dialogue,
        temperature=temperature,
        limit=args.tasks,
        repeats=k,
        max_tokens=args.max_tokens,
    )
    (line,) = result.summary.lines
    rate, low, high = (100 * value for value in line.success)
    some, every = (100 * by_k[k].value for by_k in (line.repeats.pass_at_k, line.repeats.pass_all_k))
    print(f"{temperature:11.1f}  {rate:5.1f} % ({low:4.1f} to {high:5.1f})  {some:6.1f} %  {every:6.1f} %")
