"""Evaluate a hosted model, or any server with OpenAI's interface, beside random actions and the expert.

    export OPENAI_API_KEY=…
    python examples/evaluate_hosted_model.py gpt-4.1-mini
    python examples/evaluate_hosted_model.py my-model --base-url http://127.0.0.1:8000/v1

Needs the extra `openai`. All episodes are played at once, so that it takes as long as the longest of them,
about ten replies. Prints success rates with their 95 % intervals, the differences paired by task, the tokens
that were used, and the first turn of the longest episode. Finished episodes are kept in the folder of the run:
the same call again plays only those that are missing, and `arboretum view runs` shows every conversation.
"""

import argparse

import arboretum

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model", help="name of the model at the server")
parser.add_argument("--base-url", help="address of the server; without it OpenAI's")
parser.add_argument("--env", default="TextSokobanEasy-v0", help="environment or suite")
parser.add_argument("--agent", default="think", help="agent: think, no_think, react, reflexion, …")
parser.add_argument("--tasks", type=int, default=20, help="number of held-out tasks")
parser.add_argument("--max-tokens", type=int, default=1000, help="maximum length of a reply")
parser.add_argument("--out", default="runs/hosted", help="folder of the run")
args = parser.parse_args()

result = arboretum.evaluate(
    args.env,
    args.agent,
    model=f"openai/{args.model}",
    base_url=args.base_url,
    limit=args.tasks,
    max_tokens=args.max_tokens,
    references=True,  # also plays random actions and the expert
    out=args.out,
)
print(result)
for pair in result.summary.comparisons:
    gain, p = pair.result.difference, pair.result.p_value
    low, high = 100 * gain.low, 100 * gain.high
    print(f"{pair.a} - {pair.b}: {100 * gain.value:+.1f} points ({low:+.1f} to {high:+.1f}), p = {p:.3f}")
print(*result.summary.notes, sep="\n")

own = [episode for key, episode in result.episodes.items() if key.agent.startswith(args.agent)]
longest = max(own, key=lambda episode: episode.steps)
print(f"\nThe longest episode, {longest.task} with {longest.steps} steps, began with")
print(longest.turns[0].observation, longest.turns[0].reply, sep="\n")
print(f"\nReport: {result.folder / 'report.html'}")
