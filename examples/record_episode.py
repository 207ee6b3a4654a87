"""Record an animated GIF: a model plays Sokoban, and every move is judged by what optimal play could still reach.

    python examples/record_episode.py docs/episode.gif       # made the picture of the README; about a minute

Needs the extra `examples`. The model attempts twenty levels, six times each. The level that is recorded is one
in which an attempt makes a fatal move, after which nothing solves the level, and another attempt solves it.
Arrows on the board are the possible moves, the model's reply stands beside it, and the tree below gains a node
with every step. After the fatal move the program returns to the fork with `restore`, as tree sampling and
search do, and the other attempt goes on there. Prints the number of the level, the moves of the two attempts,
and the size of the file.
"""

import argparse
from operator import itemgetter
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

import arboretum
from arboretum.envs import make_env

MOVES = {"Up": (0, -1), "Right": (1, 0), "Down": (0, 1), "Left": (-1, 0)}
ARROW = ((0.6, 0.0), (-0.35, 0.55), (-0.35, -0.55))  # corners, along and across its direction
COLORS = {"shortest": "#2f8f57", "detour": "#d99a1c", "fatal": "#c8372d"}
MEANINGS = {
    "shortest": "on a shortest solution",
    "detour": "a detour",
    "fatal": "fatal: nothing solves the level after it",
}
INK, FAINT, LINE, PAPER, WHITE = "#26302b", "#7d877f", "#ddd7c8", "#fbf8f1", "#ffffff"
WIDTH, HEIGHT, ZOOM = 700, 520, 2  # drawn at twice the size, so that edges are smooth
SIDE, TEXT = 300, 350  # side of the board, left edge of the text
TREE = (70, 350, 660, 472)  # left, top, right and bottom of the tree


def judge(env):
    """Return the kind of every move that changes the state, and the steps optimal play then needs."""
    here, best, judged = env.snapshot(), env.optimum(), {}
    for action in env.admissible_actions():
        *_, info = env.step(action)
        after = env.optimum()
        env.restore(here)
        if after.value < best.value:
            judged[action] = "fatal", None
        elif info["changed"]:
            judged[action] = "detour" if after.steps >= best.steps else "shortest", after.steps
    return judged


def moves_of(episode):
    """Return the executed actions of an episode, each with the reply that it is from and its place there."""
    return [(move.action, turn.reply, n) for turn in episode.turns for n, move in enumerate(turn.moves)]


def find_fork(env, episodes):
    """Find an attempt that a fatal move ended and one that took a shortest solution, which begin alike.

    Returns:
        Task, moves of the first attempt up to the fatal one, moves of the second, and number of moves they share.
    """
    found = []
    for lost in (episode for episode in episodes if not episode.success):
        env.reset(seed=0, options={"task": lost.task})
        shortest, start, end = env.optimum().steps, moves_of(lost), 0
        while env.optimum().value and end < len(start):
            *_, info = env.step(start[end][0])
            end = end + 1 if info["changed"] else len(start)
        for solved in episodes:
            if solved.task == lost.task and solved.success and solved.steps == shortest and end < len(start):
                shared = [a[0] == b[0] for a, b in zip(start, moves_of(solved), strict=False)].index(False)
                found.append((shared + shortest - end, lost.task, start[:end], moves_of(solved), shared))
    return max(found, key=lambda one: (one[4] >= 3, one[0]))[1:]


class Film:
    """Frames of an episode, and the tree of all moves that were possible so far.

    Args:
        depth, steps: Extent of the tree: the longest sequence of moves, and the most steps to the goal.
    """

    def __init__(self, depth, steps):
        self.depth, self.steps = depth, steps
        self.frames, self.seconds, self.edges = [], [], []

    def shoot(self, env, board, seconds, reply="", place=None, arrows=(), verdict="", color=INK, about=""):
        """Add a frame that is shown for some seconds.

        The picture of the board has arrows for (action, kind); the action of the reply at `place` is emphasized.
        """
        image = Image.new("RGB", (WIDTH * ZOOM, HEIGHT * ZOOM), PAPER)
        self.draw = ImageDraw.Draw(image)
        picture = Image.fromarray(env.render()).resize((SIDE * ZOOM, SIDE * ZOOM), Image.Resampling.LANCZOS)
        image.paste(picture, (20 * ZOOM, 20 * ZOOM))
        rows = board.split("\n")
        ((x, y),) = [(row.index(sign), n) for n, row in enumerate(rows) for sign in "PS" if sign in row]
        for action, kind in arrows:
            self._arrow(x, y, MOVES[action], COLORS[kind], SIDE / len(rows))
        self._text(TEXT, 34, "TextSokoban-v0, a model of 0.4 million parameters", FAINT, 14)
        left = self._text(TEXT, 90, "reply:  " if reply else "", FAINT, 16)
        for n, action in enumerate(reply.split(" || ")):
            left = self._text(left, 90, " || " if n else "", LINE, 16)
            left = self._text(left, 90, action, INK if n == place else FAINT, 22 if n == place else 16)
        self._text(TEXT, 142, verdict, color, 26)
        self._text(TEXT, 174, about, INK, 16)
        for n, (kind, meaning) in enumerate(MEANINGS.items()):
            self._disc(TEXT + 8, 250 + 27 * n, 7, COLORS[kind])
            self._text(TEXT + 26, 250 + 27 * n, meaning, INK, 15)
        self._tree()
        self.frames.append(image.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS))
        self.seconds.append(seconds)

    def grow(self, depth, before, judged, action):
        """Add to the tree the moves that are possible after `depth` moves; `action` is played."""
        for move, (kind, after) in judged.items():
            self.edges.append((move == action, depth, before, after, COLORS[kind]))

    def save(self, path):
        """Write the GIF, which loops, with one palette for all frames."""
        sample = Image.new("RGB", (WIDTH, HEIGHT * len(self.frames)))
        for n, frame in enumerate(self.frames):
            sample.paste(frame, (0, HEIGHT * n))
        palette = sample.quantize(128, dither=Image.Dither.NONE)
        frames = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in self.frames]
        durations = [round(1000 * seconds) for seconds in self.seconds]
        frames[0].save(path, save_all=True, append_images=frames[1:], duration=durations, loop=0, optimize=True)

    def _tree(self):
        for label, steps in (("solved", 0), ("lost", None)):
            (x, y), (right, _) = self._place(0, steps), self._place(self.depth, steps)
            self._line(x, y, right, y, LINE, 1)
            self._text(x - 14, y, label, FAINT, 14, "rm")
        for played, depth, before, after, color in sorted(self.edges, key=itemgetter(0)):  # played ones above
            (x0, y0), (x1, y1) = self._place(depth, before), self._place(depth + 1, after)
            self._line(x0, y0, x1, y1, color, 4 if played else 2)
            self._disc(x1, y1, 6 if played else 3.5, color)
        self._disc(*self._place(0, self.edges[0][2] if self.edges else self.steps), 6, INK)
        self._text(TREE[0], HEIGHT - 18, "moves", FAINT, 14)
        self._text(TREE[2], HEIGHT - 18, "height: steps that optimal play still needs", FAINT, 14, "rm")

    def _place(self, depth, steps):
        """Return the point of a node; steps are None where the level can no longer be solved."""
        left, top, right, bottom = TREE
        share = 1 if steps is None else 0.8 * steps / self.steps
        return left + (right - left) * depth / self.depth, top + (bottom - top) * share

    def _arrow(self, x, y, direction, color, tile):
        """Draw an arrow on the border between the agent's cell and the next."""
        (dx, dy), size = direction, 0.27 * tile
        x, y = 20 + (x + 0.5 + 0.72 * dx) * tile, 20 + (y + 0.5 + 0.72 * dy) * tile
        self._disc(x, y, size + 2, WHITE)
        self._disc(x, y, size, color)
        corners = [(along * dx - across * dy, along * dy + across * dx) for along, across in ARROW]
        self.draw.polygon([((x + a * size) * ZOOM, (y + b * size) * ZOOM) for a, b in corners], WHITE)

    def _text(self, x, y, text, color, size, anchor="lm"):
        """Write a line, and return the position after it."""
        font = ImageFont.load_default(size * ZOOM)
        self.draw.text((x * ZOOM, y * ZOOM), text, color, font, anchor)
        return x + font.getlength(text) / ZOOM

    def _disc(self, x, y, radius, color):
        self.draw.ellipse([(value + sign * radius) * ZOOM for sign in (-1, 1) for value in (x, y)], color)

    def _line(self, x0, y0, x1, y1, color, width):
        self.draw.line([x0 * ZOOM, y0 * ZOOM, x1 * ZOOM, y1 * ZOOM], color, width * ZOOM)


def record(env, task, lost, solved, shared):
    """Return the film of two attempts at a task that share their first moves."""
    board, _ = env.reset(seed=0, options={"task": task})
    film, fork = Film(max(len(lost), len(solved)), env.optimum().steps + 1), None
    film.shoot(env, board, 1.0)
    for moves, first in ((lost, 0), (solved, shared)):
        for depth, (action, reply, place) in list(enumerate(moves))[first:]:
            if fork is None and depth == shared:
                fork = env.snapshot(), board
            text, best, judged = reply.partition(">")[2].partition("<")[0], env.optimum(), judge(env)
            film.grow(depth, best.steps, judged, None)
            film.shoot(env, board, 0.8, text, place, [(move, kind) for move, (kind, _) in judged.items()])
            board, *_ = env.step(action)
            kind, after = judged[action]
            film.grow(depth, best.steps, {action: judged[action]}, action)
            verdict = f"{action}: {'solved' if after == 0 else kind}"
            about = f"Optimal play needs {after} more steps." if after else ""
            if kind == "fatal":
                about = "Nothing solves the level any more."
            film.shoot(env, board, 0.8, text, place, (), verdict, COLORS[kind], about)
        if moves is lost:
            film.seconds[-1] = 2.0
            env.restore(fork[0])
            board = fork[1]
            about = "Back to the fork, for another attempt."
            film.shoot(env, board, 1.8, verdict="env.restore(snapshot)", about=about)
    film.seconds[-1] = 3.5
    return film


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gif", type=Path, help="file to write")
    parser.add_argument("--levels", type=int, default=20)
    args = parser.parse_args()

    env = make_env("TextSokoban-v0", split="test", render_mode="rgb_array")
    played = arboretum.evaluate(
        "TextSokoban-v0", "no_think", model="sapling", temperature=1.0, max_tokens=32, limit=args.levels, repeats=6
    )
    task, lost, solved, shared = find_fork(env, list(played.episodes.values()))
    record(env, task, lost, solved, shared).save(args.gif)
    for name, moves in (("lost", lost), ("solved", solved)):
        print(f"{task} {name}:", " ".join(action for action, _, _ in moves))
    print(f"{args.gif}: {args.gif.stat().st_size / 1000:.0f} kB")
